"""Inputs of the analysis tests: fitted models, small spaces, swept studies and GP responses."""

from __future__ import annotations

import numpy as np
from optuna.distributions import BaseDistribution

from search_spaces.space import Hyperparameter, SearchSpace
from study.analyses.surrogate import gp
from study.analyses.surrogate.hyperparameters import GPHyperparameters
from study.analyses.surrogate.observations import LossObservations, collect_observations
from study.analyses.surrogate.score_transform import ScoreTransform
from study.analyses.surrogate.surrogate import SurrogateModel, fit_surrogate
from study.trials.table import TrialTable
from tests.support.synthetic_tables import (
    Array,
    Response,
    SyntheticLoss,
    SyntheticPlan,
    make_table,
    make_unit_space,
)


def fit_model(table: TrialTable, loss: str = "a", *, seed: int = 0) -> SurrogateModel:
    """Return the surrogate of a loss that has enough trials to fit one."""
    model = fit_surrogate(collect_observations(table, loss), seed=seed)
    assert isinstance(model, SurrogateModel), model
    return model


def make_space(**distributions: BaseDistribution) -> SearchSpace:
    """Return a space of loss `a` with these hyperparameters and no published point."""
    params = {k: Hyperparameter(d, k, "test") for k, d in distributions.items()}
    return SearchSpace(loss="a", paper="", scientific=params)


# One-at-a-time sweeps

SWEPT_POSITIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def knee_response(u: Array) -> Array:
    """Return scores that rise with x up to 0.4 and are constant above; y has no effect."""
    return np.asarray(0.6 - 0.5 * np.maximum(0.4 - u[:, 0], 0.0))


def make_swept_table(
    *,
    noise: float = 0.002,
    positions: tuple[float, ...] = SWEPT_POSITIONS,
    seeds: int = 4,
    seed: int = 0,
) -> TrialTable:
    """Return a study of `knee_response` in which x was swept around the published point."""
    problem = SyntheticLoss(make_unit_space("a", ["x", "y"]), knee_response, noise=noise)
    plan = SyntheticPlan(trials=4, repeats=1, sweep={"x": positions}, sweep_seeds=seeds)
    return make_table([problem], plan, seed=seed)


# Responses of two hyperparameters, and Gaussian processes fitted to them


def bowl_response(u: Array) -> Array:
    """Return a parabola."""
    return np.asarray(0.5 - (u[:, 0] - 0.6) ** 2 - 0.5 * (u[:, 1] - 0.4) ** 2)


def kinked_response(u: Array) -> Array:
    """Return a piecewise linear function with a kink along each axis."""
    return np.asarray(0.5 - np.abs(u[:, 0] - 0.6) - 0.5 * np.abs(u[:, 1] - 0.4))


def step_response(u: Array) -> Array:
    """Return a parabola that drops to 0.1 beyond 0.7 of the first hyperparameter."""
    return np.where(u[:, 0] > 0.7, 0.1, bowl_response(u))


def make_observations(
    response: Response, *, trials: int = 60, noise: float = 0.002
) -> LossObservations:
    """Return observations of a response of x and y at Sobol points."""
    plan = SyntheticPlan(trials=trials, sobol_share=1.0, bayes=False, stop=False)
    problem = SyntheticLoss(make_unit_space("a", ["x", "y"]), response, noise=noise)
    return collect_observations(make_table([problem], plan), "a")


def fit_process(observations: LossObservations) -> tuple[GPHyperparameters, ScoreTransform]:
    """Return a Gaussian process fitted to the scores, and the transform of the scores."""
    transform = ScoreTransform.from_scores(observations.scores)
    return gp.fit_gp(observations, transform, seed=0), transform
