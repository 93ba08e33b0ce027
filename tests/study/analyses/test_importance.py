"""Do the analyses find answers that are known, and own up where the data cannot?"""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution

from search_spaces.space import Knob, Space
from study.analyses import importance, response, stable
from study.analyses.samples import gather
from study.analyses.surrogate import Refusal, Surrogate, fit, refuse_importance
from study.table import TrialTable
from tests.study.synthetic import (
    ISHIGAMI_FIRST,
    ISHIGAMI_TOTAL,
    Array,
    Plan,
    Problem,
    additive,
    ishigami,
    make_table,
    sobol_g,
    unit_space,
)

SPREAD = Plan(trials=128, sobol_share=1.0, bayes=False, stop=False)


def _fitted(table: TrialTable, loss: str = "a", *, seed: int = 0) -> Surrogate:
    model = fit(gather(table, loss), seed=seed)
    assert isinstance(model, Surrogate), model
    return model


def _by_knob(model: Surrogate) -> dict[str, dict[str, float]]:
    rows = importance.analyse(model).to_dict("records")
    return {str(r["knob"]): {str(k): v for k, v in r.items() if k != "knob"} for r in rows}


def test_ishigami_shares_and_interaction() -> None:
    space = unit_space("a", ["x1", "x2", "x3"])
    table = make_table([Problem(space, ishigami, noise=0.1, lag=3.0)], SPREAD)
    model = _fitted(table)
    found = _by_knob(model)
    for name, first, total in zip(space.searched, ISHIGAMI_FIRST, ISHIGAMI_TOTAL, strict=True):
        assert found[name]["first"] == pytest.approx(first, abs=0.03)
        assert found[name]["total"] == pytest.approx(total, abs=0.04)
    top = importance.analyse_pairs(model).iloc[0]
    assert (top["knob"], top["other"]) == ("x1", "x3")
    assert top["share"] == pytest.approx(0.2437, abs=0.04)


def test_a_search_with_stopped_trials_tells_noise_from_roughness() -> None:
    """Too few rows for the noise and the waves would pass for it, and nothing would interact."""
    space = unit_space("a", ["x1", "x2", "x3"])
    problem = Problem(space, ishigami, noise=0.15, lag=3.0)
    model = _fitted(make_table([problem], Plan(trials=120, tpe=True)))
    assert 0.5 < model.noise / 0.15 < 2.0
    assert model.best.r2 > 0.85
    found = _by_knob(model)
    assert found["x2"]["total"] - found["x2"]["first"] < 0.04, "it acts alone"
    assert found["x3"]["total"] - found["x3"]["first"] > 0.15, "it acts with another alone"


def test_sobol_g_shares() -> None:
    response_of, first, total = sobol_g([0.0, 1.0, 4.5, 9.0])
    space = unit_space("a", list("abcd"))
    plan = Plan(trials=200, sobol_share=1.0, bayes=False, stop=False)
    found = _by_knob(_fitted(make_table([Problem(space, response_of, noise=0.01)], plan)))
    for i, name in enumerate(space.searched):
        assert found[name]["first"] == pytest.approx(first[i], abs=0.05)
        assert found[name]["total"] == pytest.approx(total[i], abs=0.05)


def _log_table() -> TrialTable:
    """80 % of the variance is the learning rate's, on its own (logarithmic) scale."""
    space = Space(
        loss="a",
        paper="made up",
        scientific={
            "margin": Knob(FloatDistribution(0.0, 1.0), "m", "test"),
            "lr": Knob(FloatDistribution(1e-6, 1e-1, log=True), "η", "test"),
        },
    )

    def score(u: Array) -> Array:
        return np.asarray(0.5 + 0.2 * u[:, 1] + 0.1 * u[:, 0])

    return make_table([Problem(space, score, noise=0.005)], SPREAD)


def test_log_knobs_count_on_their_own_scale_where_optuna_does_not() -> None:
    table = _log_table()
    found = _by_knob(_fitted(table))
    assert found["lr"]["first"] == pytest.approx(0.8, abs=0.05)
    assert found["margin"]["first"] == pytest.approx(0.2, abs=0.05)
    study = optuna.create_study(direction="maximize")
    spaces = table.spaces["a"].distributions
    for row in table.of("a").to_dict("records"):
        point = {k: row["knob." + k] for k in spaces}
        study.add_trial(optuna.create_trial(params=point, distributions=spaces, value=row["score"]))
    theirs = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
    )
    assert theirs["lr"] < 0.5, "Optuna's fANOVA respects log scales now: say so in the docs"


def _cliff(u: Array) -> Array:
    """A plateau that ends: everything above 0.75 of the first knob falls to the floor."""
    plateau = 0.6 - 0.05 * (u[:, 1] - 0.5) ** 2
    return np.where(u[:, 0] > 0.75, 0.1, plateau)


def test_cliff_is_found_with_half_the_trials_spread_out() -> None:
    table = make_table(
        [Problem(unit_space("a", list("abcd")), _cliff, noise=0.006)],
        Plan(trials=120, sobol_share=0.5),
    )
    model = _fitted(table)
    found = _by_knob(model)
    assert found["a"]["total"] > 0.8
    curves = response.analyse(model, tolerance=0.02, regions=("good",))
    row = stable.analyse(curves, model, tolerance=0.02).iloc[0]
    assert row["knob"] == "a"
    assert row["status"] == "stable"
    assert row["high"] <= 0.75 + 1e-9, "the stable range runs over the cliff"
    assert row["outer_high"] <= 0.85


def test_early_stopping_and_crowded_samples_keep_the_ranking() -> None:
    weights = (0.3, 0.2, 0.05, 0.0)
    truth = np.array(weights) ** 2 / np.sum(np.array(weights) ** 2)
    for seed in range(3):
        table = make_table(
            [Problem(unit_space("a", list("abcd")), additive(weights), noise=0.006)],
            Plan(trials=100, sobol_share=0.3),
            seed=seed,
        )
        stopped = (table.trials["state"] == "stopped").mean()
        assert stopped > 0.1, "the made-up study stops nothing, so it tests nothing"
        found = _by_knob(_fitted(table))
        error = sum(abs(found[k]["first"] - t) for k, t in zip("abcd", truth, strict=True))
        assert error < 0.2
        assert max(found, key=lambda k: found[k]["first"]) == "a"


def test_nothing_but_noise_gives_no_importances() -> None:
    space = unit_space("a", list("abc"))
    table = make_table([Problem(space, lambda u: np.full(len(u), 0.5), noise=0.02)])
    model = _fitted(table)
    refused = refuse_importance(model)
    assert isinstance(refused, Refusal)
    assert "importances need 50%" in refused.reason


def test_too_few_trials_are_refused_with_the_number_needed() -> None:
    table = make_table(
        [Problem(unit_space("a", list("abcdef")), additive([0.2] * 6))],
        Plan(trials=10, repeats=1),
    )
    refused = fit(gather(table, "a"))
    assert isinstance(refused, Refusal)
    assert "18 are needed to model 6 knobs" in refused.reason
