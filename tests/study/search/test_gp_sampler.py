"""The sampler finds optima with few trials, and points sampled together differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from search_spaces.unit_scale import to_unit
from study.search.gp_model import fit_posterior
from study.search.gp_sampler import DIVERGED_ATTR, MAX_FITTED_TRIALS, GPEISampler

SPACE = {
    "rate": FloatDistribution(1e-5, 1e-1, log=True),
    "margin": FloatDistribution(0.0, 1.0),
    "size": IntDistribution(1, 5),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}


def score(values: dict[str, Any]) -> float:
    """Return a score that is best at 1e-3, 0.3, 4 and b; the rate matters most."""
    rate = float(to_unit(SPACE["rate"], [values["rate"]])[0])
    margin, size = float(values["margin"]), int(values["size"])
    off = 4 * (rate - 0.5) ** 2 + (margin - 0.3) ** 2 + 0.01 * (size - 4) ** 2
    return 1.0 - off - (0.0 if values["kind"] == "b" else 0.2)


def study_with(points: list[dict[str, Any]], **options: Any) -> optuna.Study:
    study = optuna.create_study(direction="maximize")
    for point in points:
        study.add_trial(
            create_trial(params=point, distributions=SPACE, value=score(point), **options)
        )
    return study


def random_points(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "rate": float(10 ** rng.uniform(-5, -1)),
            "margin": float(rng.random()),
            "size": int(rng.integers(1, 6)),
            "kind": str(rng.choice(["a", "b", "c"])),
        }
        for _ in range(count)
    ]


def ask(study: optuna.Study, seed: int) -> optuna.Trial:
    study.sampler = GPEISampler(seed=seed)
    return study.ask(SPACE)


def test_it_comes_close_to_the_optimum_with_thirty_trials() -> None:
    study = study_with(random_points(10))
    start = study.best_value
    for i in range(20):
        trial = ask(study, i)
        study.tell(trial, score(trial.params))
    assert start < 0.9
    assert study.best_value > 0.98
    assert study.best_params["kind"] == "b"


def test_the_same_trials_and_seed_give_the_same_point() -> None:
    asked = [ask(study_with(random_points(12)), seed).params for seed in (1, 1, 2)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_points_sampled_together_differ() -> None:
    study = study_with(random_points(12))
    asked = [ask(study, 3).params for _ in range(4)]
    rates = to_unit(SPACE["rate"], [p["rate"] for p in asked])
    margins = to_unit(SPACE["margin"], [p["margin"] for p in asked])
    gaps = np.hypot(np.subtract.outer(rates, rates), np.subtract.outer(margins, margins))
    assert gaps[np.triu_indices(4, 1)].min() > 0.01


@pytest.mark.parametrize("attributes", [{DIVERGED_ATTR: True}, {}], ids=["diverged", "failed"])
def test_a_region_of_lost_trials_is_avoided(attributes: dict[str, Any]) -> None:
    """Scores rise towards a rate of 1e-2, and all trials above it fail."""

    def rising(values: dict[str, Any]) -> float:
        return float(to_unit(SPACE["rate"], [values["rate"]])[0])

    asked = {}
    for lost in (False, True):
        study = optuna.create_study(direction="maximize")
        for point in random_points(24):
            over = point["rate"] > 1e-2
            if over and not lost:
                continue
            study.add_trial(
                create_trial(
                    params=point,
                    distributions=SPACE,
                    value=None if over else rising(point),
                    state=TrialState.FAIL if over else TrialState.COMPLETE,
                    user_attrs=attributes if over else {},
                )
            )
        asked[lost] = np.median([ask(study, seed).params["rate"] for seed in range(5)])
    assert asked[False] > 2e-2
    assert asked[True] < 2e-2


def test_a_region_that_always_fails_does_not_trap_the_search() -> None:
    """Scores rise towards sizes that always run out of memory."""
    study = optuna.create_study(direction="maximize")
    states = {True: TrialState.FAIL, False: TrialState.COMPLETE}
    failed = 0
    for i, point in enumerate([*random_points(8), *[None] * 16]):
        if point is None:
            trial = ask(study, i)
            huge = trial.params["margin"] > 0.6
            study.tell(trial, None if huge else trial.params["margin"], state=states[huge])
            failed += huge
        else:
            huge = point["margin"] > 0.6
            value = None if huge else float(point["margin"])
            study.add_trial(
                create_trial(params=point, distributions=SPACE, value=value, state=states[huge])
            )
    assert failed <= 8
    assert study.best_value > 0.5


def test_few_trials_give_random_points() -> None:
    for points in ([], random_points(1)):
        assert ask(study_with(points), 0).params.keys() == SPACE.keys()


def test_the_number_of_fitted_trials_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    n_fitted = []

    def counting_fit(units: Any, *rest: Any) -> Any:
        n_fitted.append(len(units))
        return fit_posterior(units, *rest)

    monkeypatch.setattr("study.search.gp_sampler.fit_posterior", counting_fit)
    ask(study_with(random_points(MAX_FITTED_TRIALS + 50)), 0)
    assert n_fitted == [MAX_FITTED_TRIALS]
