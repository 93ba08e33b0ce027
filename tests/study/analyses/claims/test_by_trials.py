"""Claims about losses, on studies of two losses whose truth is known."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.claims import BetterLoss, CostRatio, FasterLoss, HigherMetric, PaperClaim
from study.analyses.claims import judge
from study.analyses.findings import StudyFindings
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.surrogate import Refusal
from study.trials.table import TrialTable
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.slow

STUDIES_BY_LEAD = {-4.0: 20, 0.0: 90, 4.0: 20}
"""Number of simulated studies for each lead of loss `a`, in units of `NOISE`."""
NOISE = 0.005
PLAN = SyntheticPlan(trials=6, repeats=1, bayes=False, epochs=12)
MODELS = {name: LossModel(Refusal("few"), Refusal("few"), NOISE) for name in ("a", "b")}
FASTER = PaperClaim("faster", "", "", FasterLoss("b"))
HIGHER = PaperClaim("higher", "", "", HigherMetric("recall_at_1", "b"))

Test = BetterLoss | FasterLoss | CostRatio | HigherMetric
TESTS: dict[str, Test] = {
    "better": BetterLoss("b"),
    "faster": FasterLoss("b"),
    "cheaper": CostRatio("b", 1.0),
    "higher": HigherMetric("spread", "b"),
}


def _study(kind: str, lead: float, *, confirm: int, repeats: int, seed: int) -> TrialTable:
    """Make a study in which loss `a` leads, in what the claim is about, by `lead` deviations."""
    # The response is flat, so that every point has the true mean of the tuned one.
    b = SyntheticLoss(
        make_unit_space("b", ["x"]),
        make_additive_response([0.0]),
        noise=NOISE,
        extra={"spread": 0.1},
    )
    step = lead * NOISE
    a = {
        "better": replace(b, response=make_additive_response([0.0], top=0.6 + step)),
        "faster": replace(b, tau=b.tau * (1.0 - 0.1 * lead)),
        "cheaper": replace(b, seconds=1.0 - 0.1 * lead),
        "higher": replace(b, extra={"spread": 0.1 + step}),
    }[kind]
    a = replace(a, space=make_unit_space("a", ["x"]))
    plan = replace(PLAN, confirm=confirm, repeats=repeats)
    table = make_table([a, b], plan, seed=seed)
    rng = np.random.default_rng(seed)
    timed = table.trials["seconds"] * np.exp(0.1 * rng.standard_normal(len(table.trials)))
    return replace(table, trials=table.trials.assign(seconds=timed))


@pytest.mark.parametrize(("confirm", "repeats"), [(5, 1), (0, 5)], ids=["confirmed", "repeated"])
@pytest.mark.parametrize("kind", list(TESTS))
def test_verdicts_about_losses_are_right_at_the_stated_rate(
    kind: str, confirm: int, repeats: int
) -> None:
    """For equal losses, each verdict is wrong in one study of twenty; there are 16 such counts."""
    claim = PaperClaim("c", "", "", TESTS[kind])
    counts = {}
    for lead, studies in STUDIES_BY_LEAD.items():
        tables = (
            _study(kind, lead, confirm=confirm, repeats=repeats, seed=seed)
            for seed in range(studies)
        )
        counts[lead] = Counter(judge.judge_claim(t, MODELS, "a", claim).verdict for t in tables)
    n = STUDIES_BY_LEAD[0.0]
    limit = 0.05 * n + 3 * np.sqrt(0.05 * 0.95 * n)
    assert max(counts[0.0]["supported"], counts[0.0]["contradicted"]) <= limit, counts
    assert counts[4.0]["contradicted"] == counts[-4.0]["supported"] == 0, counts
    assert counts[4.0]["supported"] >= 0.8 * STUDIES_BY_LEAD[4.0], counts
    assert counts[-4.0]["contradicted"] >= 0.8 * STUDIES_BY_LEAD[-4.0], counts


@pytest.mark.parametrize(
    ("tau", "gap", "least", "most"),
    [(2.0, 0.0, 9, 10), (2.0, -0.004, 9, 10), (6.0, 0.012, 0, 2), (6.0, 0.0, 0, 2)],
    ids=["3x faster", "3x faster, ends lower", "as fast, ends higher", "the same"],
)
def test_faster_is_about_speed_and_not_about_the_end(
    tau: float, gap: float, least: int, most: int
) -> None:
    supported = contradicted = 0
    for seed in range(10):
        both = [
            SyntheticLoss(
                make_unit_space("a", ["x"]), lambda u: np.full(len(u), 0.6 + gap), tau=tau
            ),
            SyntheticLoss(make_unit_space("b", ["x"]), lambda u: np.full(len(u), 0.6), tau=6.0),
        ]
        plan = SyntheticPlan(trials=6, confirm=5, repeats=1, bayes=False)
        found = judge.judge_claim(make_table(both, plan, seed=seed), {}, "a", FASTER)
        supported += found.verdict == "supported"
        contradicted += found.verdict == "contradicted"
    assert least <= supported <= most
    assert contradicted <= (0 if least else 2)


@pytest.mark.parametrize("claim", [HIGHER, FASTER], ids=["higher", "faster"])
def test_the_best_trials_of_a_search_are_not_repeated_seeds(claim: PaperClaim) -> None:
    """Two equal losses, searched but not confirmed: the claim stays open."""
    for seed in range(6):
        both = [
            SyntheticLoss(make_unit_space(n, list("xyz")), make_additive_response((0.2, 0.1, 0.05)))
            for n in "ab"
        ]
        searched = make_table(both, SyntheticPlan(trials=60), seed=seed)
        found = judge.judge_claim(searched, {}, "a", claim)
        assert found.verdict == "cannot tell", found
        assert "seeds" in found.settle


def test_repeats_of_the_best_points_stand_in_for_confirmations() -> None:
    tops = {"a": 0.7, "b": 0.6}
    both = [
        SyntheticLoss(make_unit_space(n, ["x"]), make_additive_response((0.2,), top=t))
        for n, t in tops.items()
    ]
    table = make_table(both, SyntheticPlan(trials=20, repeats=4))
    assert judge.judge_claim(table, {}, "a", HIGHER).verdict == "supported"
    mixed = make_table(both, SyntheticPlan(trials=20, repeats=1, confirm=4))
    confirmed_b = (mixed.trials["loss"] == "b") & (mixed.trials["origin"] == "confirm")
    only_a_confirmed = replace(mixed, trials=mixed.trials[~confirmed_b])
    assert judge.judge_claim(only_a_confirmed, {}, "a", HIGHER).verdict == "cannot tell"


@pytest.mark.xdist_group("demo")
def test_faster_counts_epochs_and_not_scores(demo_findings: StudyFindings) -> None:
    """With only every ninth epoch of one loss logged, neither rises before the ninth epoch."""
    table, claim = demo_findings.table, PaperClaim("c", "", "", FasterLoss("circle"))
    sparse = table.curves["trial"].str.startswith("proxy_anchor") & (table.curves["epoch"] % 9 > 0)
    thinned = replace(table, curves=table.curves[~sparse])
    models = demo_findings.loss_models
    evidence = judge.judge_claim(thinned, models, "proxy_anchor", claim).evidence
    found = re.search(r"after ([\d.]+) epochs, the other's after ([\d.]+)", evidence)
    assert found is not None, evidence
    assert min(float(found[1]), float(found[2])) >= 9
