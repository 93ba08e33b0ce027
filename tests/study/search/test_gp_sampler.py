"""The Gaussian process finds optima with few trials, and asks nothing twice at once."""

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

from search_spaces.scale import to_unit
from study.tuning import posterior
from study.tuning.gaussian import DIVERGED, MOST_POINTS, GaussianSampler
from study.tuning.posterior import fit_posterior, tempered

SPACE = {
    "rate": FloatDistribution(1e-5, 1e-1, log=True),
    "margin": FloatDistribution(0.0, 1.0),
    "size": IntDistribution(1, 5),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}


def score(values: dict[str, Any]) -> float:
    """Best at 1e-3, 0.3, 4 and b; the rate matters most."""
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


def drawn(count: int, seed: int = 0) -> list[dict[str, Any]]:
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
    study.sampler = GaussianSampler(seed=seed)
    return study.ask(SPACE)


def test_it_comes_close_to_the_optimum_with_thirty_trials() -> None:
    study = study_with(drawn(10))
    start = study.best_value
    for i in range(20):
        trial = ask(study, i)
        study.tell(trial, score(trial.params))
    assert start < 0.9
    assert study.best_value > 0.98
    assert study.best_params["kind"] == "b"


def test_the_same_record_and_seed_give_the_same_point() -> None:
    asked = [ask(study_with(drawn(12)), seed).params for seed in (1, 1, 2)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_points_asked_together_differ() -> None:
    study = study_with(drawn(12))
    asked = [ask(study, 3).params for _ in range(4)]
    rates = to_unit(SPACE["rate"], [p["rate"] for p in asked])
    margins = to_unit(SPACE["margin"], [p["margin"] for p in asked])
    gaps = np.hypot(np.subtract.outer(rates, rates), np.subtract.outer(margins, margins))
    assert gaps[np.triu_indices(4, 1)].min() > 0.01


@pytest.mark.parametrize("attributes", [{DIVERGED: True}, {}], ids=["diverged", "failed"])
def test_a_region_without_scores_is_left_alone(attributes: dict[str, Any]) -> None:
    """All trials above a rate of 1e-2 are lost, and scores rise towards there."""

    def rising(values: dict[str, Any]) -> float:
        return float(to_unit(SPACE["rate"], [values["rate"]])[0])

    asked = {}
    for lost in (False, True):
        study = optuna.create_study(direction="maximize")
        for point in drawn(24):
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


def test_where_memory_never_suffices_is_not_asked_for_ever() -> None:
    """Scores rise towards sizes that no machine can train; a search must not end there."""
    study = optuna.create_study(direction="maximize")
    states = {True: TrialState.FAIL, False: TrialState.COMPLETE}
    failed = 0
    for i, point in enumerate([*drawn(8), *[None] * 16]):
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


def test_with_too_little_known_it_draws_at_random() -> None:
    for points in ([], drawn(1)):
        assert ask(study_with(points), 0).params.keys() == SPACE.keys()


def test_many_trials_take_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fitted(units: Any, *rest: Any) -> Any:
        seen.append(len(units))
        return fit_posterior(units, *rest)

    monkeypatch.setattr("study.tuning.gaussian.fit_posterior", fitted)
    ask(study_with(drawn(MOST_POINTS + 50)), 0)
    assert seen == [MOST_POINTS]


def test_the_slope_of_the_likelihood_is_right() -> None:
    rng = np.random.default_rng(0)
    units = rng.random((12, 2))
    gaps = posterior._gaps(units, units, np.array([False, True]))
    values, at, tiny = rng.standard_normal(12), np.array([-0.5, 0.2, 0.3, -2.0]), 1e-6
    slope = posterior._unlikeliness(at, gaps, values)[1]
    for i, step in enumerate(tiny * np.eye(4)):
        up, down = (posterior._unlikeliness(at + s, gaps, values)[0] for s in (step, -step))
        assert slope[i] == pytest.approx((up - down) / (2 * tiny), rel=1e-4)


def test_noise_is_not_believed() -> None:
    """Of two seeds of a point the better one is luck."""
    units = np.repeat(np.random.default_rng(0).random((12, 2)), 2, axis=0)
    luck = np.tile([0.3, -0.3], 12)
    model = fit_posterior(units, units[:, 0] + luck, [False, False])
    assert np.ptp(model.believed.reshape(12, 2), axis=1).max() < 1e-6
    inside = model.moments(units)[1]
    assert (model.moments(np.array([[5.0, 5.0]]))[1] > inside).all()


def test_one_terrible_score_does_not_set_the_scale() -> None:
    scores = np.array([0.4, 0.42, 0.45, 0.46, 0.47, -1000.0])
    values = tempered(scores)
    assert (np.argsort(values) == np.argsort(scores)).all()
    assert values[4] - values[0] > 0.3
    assert np.isfinite(tempered(np.full(4, 0.5))).all()
