"""Contract of samplers: tests that the test class of a new sampler inherits.

    class TestTpe(SamplerContract):
        name = "tpe"

The class checks what `LossSampler` relies on: points are in the space, they depend on the recorded
trials and the seed only, and trials of every state are accepted.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState, create_trial

from search_spaces.space import Choice, Float, Hyperparameter, Int, SearchSpace
from study.search.gp_sampler import DIVERGED_ATTR
from study.search.optuna_samplers import describe_sampler, make_sampler

SPACE = SearchSpace(
    loss="x",
    paper="",
    scientific={
        "rate": Hyperparameter(Float(1e-4, 1.0, log=True), "a", ""),
        "margin": Hyperparameter(Float(0.0, 1.0), "b", ""),
        "size": Hyperparameter(Int(1, 4), "c", ""),
        "kind": Hyperparameter(Choice(["x", "y"]), "d", ""),
    },
)
SINGLE_STATES = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]


def sample_random_value(distribution: BaseDistribution, rng: np.random.Generator) -> Any:
    """Return a random value of a distribution."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return distribution.choices[int(rng.integers(len(distribution.choices)))]
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    if isinstance(distribution, optuna.distributions.IntDistribution):
        return int(rng.integers(low, high + 1))
    return float(low + (high - low) * rng.random())


def build_history(states: list[TrialState], seed: int = 0) -> optuna.Study:
    """Return a study with a trial of each state, in this order."""
    rng, study = np.random.default_rng(seed), optuna.create_study(direction="maximize")
    for state in states:
        params = {k: sample_random_value(d, rng) for k, d in SPACE.distributions.items()}
        has_value = state in (TrialState.COMPLETE, TrialState.PRUNED)
        study.add_trial(
            create_trial(
                state=state,
                params=params,
                distributions=SPACE.distributions,
                value=float(rng.random()) if has_value else None,
                intermediate_values={1: float(rng.random())} if has_value else {},
                user_attrs={DIVERGED_ATTR: True} if state == TrialState.FAIL else {},
            )
        )
    return study


class SamplerContract:
    """Tests of one sampler; a subclass sets its name in study files."""

    name: ClassVar[str]

    def sample_point(self, states: list[TrialState], *, seed: int = 7) -> dict[str, Any]:
        """Return the next point after a history."""
        study = build_history(states)
        study.sampler = make_sampler(self.name, seed=seed, n_startup_trials=4)
        return dict(study.ask(SPACE.distributions).params)

    def check_in_space(self, point: dict[str, Any]) -> None:
        """Check that every value is one that the space allows."""
        assert set(point) == set(SPACE.distributions)
        for name, distribution in SPACE.distributions.items():
            assert distribution._contains(distribution.to_internal_repr(point[name])), name

    @pytest.mark.parametrize("n_trials", [0, 1, 3, 4, 5, 30])
    def test_points_are_in_the_space_with_few_and_many_trials(self, n_trials: int) -> None:
        self.check_in_space(self.sample_point([TrialState.COMPLETE] * n_trials))

    @pytest.mark.parametrize("state", SINGLE_STATES)
    def test_trials_of_every_state_are_accepted(self, state: TrialState) -> None:
        self.check_in_space(self.sample_point([TrialState.COMPLETE] * 8 + [state] * 3))
        self.check_in_space(self.sample_point([state] * 6))

    def test_a_point_depends_on_the_trials_and_the_seed_only(self) -> None:
        states = [TrialState.COMPLETE] * 10
        assert self.sample_point(states) == self.sample_point(states)
        assert self.sample_point(states) != self.sample_point(states, seed=8)

    def test_all_settings_are_described(self) -> None:
        description = describe_sampler(self.name, n_startup_trials=4, space=SPACE)
        assert description["name"] == self.name
        assert "seed" not in description
