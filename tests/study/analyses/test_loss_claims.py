"""Verdicts about losses at the stated rate, on studies of two losses whose truth is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.claims import BetterLoss, Claim, CostRatio, FasterLoss, HigherMetric
from study.analyses import claims
from study.analyses.loss_model import LossModel
from study.analyses.surrogate import Refusal
from study.table import TrialTable
from tests.study.synthetic import Plan, Problem, additive, make_table, unit_space

SEEDS = {-4.0: 20, 0.0: 90, 4.0: 20}
"""Studies by the lead of a loss."""
NOISE = 0.005
PLAN = Plan(trials=6, repeats=1, bayes=False, epochs=12)
MODELS = {name: LossModel(Refusal("few"), Refusal("few"), NOISE) for name in ("a", "b")}

Test = BetterLoss | FasterLoss | CostRatio | HigherMetric
TESTS: dict[str, Test] = {
    "better": BetterLoss("b"),
    "faster": FasterLoss("b"),
    "cheaper": CostRatio("b", 1.0),
    "higher": HigherMetric("spread", "b"),
}


def _study(kind: str, lead: float, *, confirm: int, repeats: int, seed: int) -> TrialTable:
    """Loss `a` leads by so many of what tells two seeds apart, in what the claim is about."""
    # Flat, so that every point is as good as the tuned one and its true mean is known.
    made = Problem(unit_space("b", ["x"]), additive([0.0]), noise=NOISE, extra={"spread": 0.1})
    step = lead * NOISE
    ahead = {
        "better": replace(made, response=additive([0.0], top=0.6 + step)),
        "faster": replace(made, tau=made.tau * (1.0 - 0.1 * lead)),
        "cheaper": replace(made, seconds=1.0 - 0.1 * lead),
        "higher": replace(made, extra={"spread": 0.1 + step}),
    }[kind]
    ahead = replace(ahead, space=unit_space("a", ["x"]))
    plan = replace(PLAN, confirm=confirm, repeats=repeats)
    table = make_table([ahead, made], plan, seed=seed)
    rng = np.random.default_rng(seed)
    timed = table.trials["seconds"] * np.exp(0.1 * rng.standard_normal(len(table.trials)))
    return replace(table, trials=table.trials.assign(seconds=timed))


@pytest.mark.parametrize(("confirm", "repeats"), [(5, 1), (0, 5)], ids=["confirmed", "repeated"])
@pytest.mark.parametrize("kind", list(TESTS))
def test_verdicts_about_losses_are_right_at_the_stated_rate(
    kind: str, confirm: int, repeats: int
) -> None:
    """Of equal losses each verdict is wrong in one study of twenty; there are 16 such counts."""
    claim = Claim("c", "", "", TESTS[kind])
    said = {}
    for lead, seeds in SEEDS.items():
        studies = (
            _study(kind, lead, confirm=confirm, repeats=repeats, seed=seed) for seed in range(seeds)
        )
        said[lead] = Counter(claims.judge(t, MODELS, "a", claim).verdict for t in studies)
    most = 0.05 * SEEDS[0.0] + 3 * np.sqrt(0.05 * 0.95 * SEEDS[0.0])
    assert max(said[0.0]["supported"], said[0.0]["contradicted"]) <= most, said
    assert said[4.0]["contradicted"] == said[-4.0]["supported"] == 0, said
    assert said[4.0]["supported"] >= 0.8 * SEEDS[4.0], said
    assert said[-4.0]["contradicted"] >= 0.8 * SEEDS[-4.0], said
