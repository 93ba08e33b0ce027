"""Gaussian process over hyperparameters and epoch, and functions drawn from its posterior.

The kernel is a sum of one-dimensional terms, with one length scale per hyperparameter and one for
log(epoch), and of one joint term over all inputs with length scales of its own, so that sparse data
do not suggest interactions between hyperparameters that act alone. Choices are one-hot with one
length scale. Noise has two parts: what the seed does to a trial as a unit, and what remains at a
single epoch. Draws use pathwise conditioning (Wilson et al., ICML 2020): each is a function that
can be evaluated anywhere, so that all analyses evaluate the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import BaseDistribution
from scipy.linalg import cho_solve, cholesky, solve_triangular

from study.analyses.surrogate import discontinuity
from study.analyses.surrogate.encoding import InputEncoding
from study.analyses.surrogate.hyperparameters import (
    COVARIANCE_JITTER,
    GPHyperparameters,
    NegativeLogPosterior,
    fit_best_smoothness,
)
from study.analyses.surrogate.kernel import (
    FourierFeatures,
    compute_squared_distances,
    evaluate_kernel,
)
from study.analyses.surrogate.observations import FloatArray, LossObservations, get_unit_levels
from study.analyses.surrogate.score_transform import ScoreTransform

_N_JOINT_FEATURES = 448
_N_ADDITIVE_FEATURES = 64
_TERM_TABLE_SIZE = 129


def fit_gp(
    observations: LossObservations,
    transform: ScoreTransform,
    *,
    seed: int,
    other_fit: GPHyperparameters | None = None,
    max_rows: int = 180,
    steps: int = 50,
) -> GPHyperparameters:
    """Return the kernel, hyperparameters and possibly a jump of highest posterior.

    Args:
        other_fit: Hyperparameters fitted to another scale of the score, used as the start.
    """
    objective = NegativeLogPosterior(observations, transform, max_rows=max_rows, seed=seed)
    starts = [objective.prior_mean]
    if other_fit is None:
        # A second start, with short length scales and little noise, for rough responses.
        rough_start = objective.prior_mean.copy()
        rough_start[: len(observations.params)] -= 1.0
        rough_start[-1] -= 2.0
        starts.append(rough_start)
    elif other_fit.jump is None:
        starts = [other_fit.theta]
    lowest, hyperparameters = fit_best_smoothness(objective, starts, steps=steps)
    with_jump = discontinuity.find_discontinuity(
        observations, transform, hyperparameters, lowest=lowest, max_rows=max_rows, seed=seed
    )
    # Two sides of the same height are a kink, not a jump.
    if (
        with_jump is None
        or _jump_height(GPPosterior(observations, with_jump, transform))
        < discontinuity.MIN_JUMP_HEIGHT_SD
    ):
        return hyperparameters
    return with_jump


def refit_gp(
    observations: LossObservations,
    transform: ScoreTransform,
    start: GPHyperparameters,
    *,
    seed: int,
    max_rows: int,
    steps: int,
) -> GPHyperparameters:
    """Fit the hyperparameters to other rows from a start; the kernel and the jump are kept."""
    objective = NegativeLogPosterior(
        observations,
        transform,
        smoothness=start.smoothness,
        jump=start.jump,
        max_rows=max_rows,
        seed=seed,
    )
    return GPHyperparameters(
        objective.minimise_from(start.theta, steps)[1], start.smoothness, start.jump
    )


def _jump_height(posterior: GPPosterior) -> float:
    """Return how far apart the two sides of the jump are, in standard deviations of the scores."""
    observations, at = posterior.observations, posterior.hyperparameters.jump
    assert at is not None
    units = np.unique(observations.units, axis=0)
    epochs = np.full(len(units), observations.full_epochs)
    sides = []
    for step in (-1e-6, 1e-6):
        units[:, at.param] = at.position + step
        sides.append(float(posterior.predict(units, epochs)[0].mean()))
    return abs(sides[1] - sides[0])


class GPPosterior:
    """The process conditioned on all rows, for one set of hyperparameters."""

    def __init__(
        self,
        observations: LossObservations,
        hyperparameters: GPHyperparameters,
        transform: ScoreTransform,
    ) -> None:
        self.observations, self.hyperparameters, self.score_transform = (
            observations,
            hyperparameters,
            transform,
        )
        self.encoding = InputEncoding.from_distributions(
            observations.distributions, hyperparameters.jump
        )
        self.inputs = self.encode_inputs(observations.units, observations.epochs)
        self.length_scales = hyperparameters.length_scales[self.encoding.column_groups]
        self.joint_length_scales = hyperparameters.joint_length_scales[self.encoding.column_groups]
        covariance = self.cross_covariance(self.inputs)
        covariance += hyperparameters.trial_variance * (
            observations.trial[:, None] == observations.trial[None, :]
        )
        covariance.flat[:: len(observations) + 1] += (
            hyperparameters.noise_variance + COVARIANCE_JITTER
        )
        self.factor = cholesky(covariance, lower=True, check_finite=False)
        self.y = transform.to_latent(observations.scores)
        self.alpha = cho_solve((self.factor, True), self.y, check_finite=False)

    def encode_inputs(self, units: FloatArray, epochs: FloatArray) -> FloatArray:
        """Return the inputs of the process."""
        return self.encoding(units, epochs, self.observations.full_epochs)

    def additive_covariance(self, inputs: FloatArray, group: int) -> FloatArray:
        """Return the covariance between inputs and data by one one-dimensional term."""
        columns = self.encoding.columns_in_group(group)
        lengths = self.length_scales[columns]
        r2 = compute_squared_distances(
            inputs[:, columns] / lengths, self.inputs[:, columns] / lengths
        )
        return self.hyperparameters.additive_variance * evaluate_kernel(
            r2, self.hyperparameters.smoothness
        )

    def cross_covariance(self, inputs: FloatArray) -> FloatArray:
        """Return the covariance between inputs and data; 1 is the variance of an unknown level."""
        r2 = compute_squared_distances(
            inputs / self.joint_length_scales, self.inputs / self.joint_length_scales
        )
        total = (
            self.hyperparameters.joint_variance
            * evaluate_kernel(r2, self.hyperparameters.smoothness)
            + 1.0
        )
        for group in range(self.encoding.n_groups):
            total += self.additive_covariance(inputs, group)
        return total

    def predict(self, units: FloatArray, epochs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return latent mean and deviation of a new trial's score, with seed and epoch noise."""
        cross = self.cross_covariance(self.encode_inputs(units, epochs))
        hyperparameters = self.hyperparameters
        back = solve_triangular(self.factor, cross.T, lower=True, check_finite=False)
        prior = (
            hyperparameters.joint_variance
            + hyperparameters.additive_variance * hyperparameters.n_groups
            + 1.0
        )
        variance = (
            prior
            - (back * back).sum(0)
            + hyperparameters.trial_variance
            + hyperparameters.noise_variance
        )
        return np.asarray(cross @ self.alpha), np.sqrt(np.maximum(variance, 1e-12))

    @property
    def noise_sd(self) -> float:
        """Standard deviation of repeated good trials at one point, in units of the score."""
        good = float(np.quantile(self.observations.scores, 0.9))
        spread = np.sqrt(self.hyperparameters.trial_variance + self.hyperparameters.noise_variance)
        return float(spread / self.score_transform.latent_slope(good))

    def draw_sample_paths(self, count: int, seed: int) -> SamplePaths:
        """Draw `count` functions from the posterior."""
        rng = np.random.default_rng(seed)
        hyperparameters = self.hyperparameters
        offset = rng.standard_normal(count)
        joint = self._draw_features(
            rng, self.inputs.shape[1], _N_JOINT_FEATURES, count, hyperparameters.joint_variance
        )
        alone = [
            self._draw_features(
                rng,
                len(self.encoding.columns_in_group(g)),
                _N_ADDITIVE_FEATURES,
                count,
                hyperparameters.additive_variance,
            )
            for g in range(hyperparameters.n_groups)
        ]
        prior = joint(self.inputs / self.joint_length_scales) + offset
        for g, waves in enumerate(alone):
            prior += self._evaluate_prior_term(waves, self.inputs, g)
        codes = np.unique(self.observations.trial, return_inverse=True)[1]
        shocks = (
            np.sqrt(hyperparameters.trial_variance)
            * rng.standard_normal((codes.max() + 1, count))[codes]
        )
        shocks += np.sqrt(hyperparameters.noise_variance) * rng.standard_normal(
            (len(self.y), count)
        )
        gap = self.y[:, None] - prior - shocks
        update = cho_solve((self.factor, True), gap, check_finite=False)
        tables = [self._tabulate_term(g, alone[g], update) for g in range(hyperparameters.n_groups)]
        # Paths are evaluated at the last epoch only, so the epoch's term is a constant.
        d = len(self.observations.params)
        level = offset + update.sum(axis=0) + tables[d][0]
        sides = tables[d + 1] if hyperparameters.jump else None
        return SamplePaths(self, joint, tuple(tables[:d]), sides, level, update)

    def _draw_features(
        self, rng: np.random.Generator, width: int, features: int, count: int, variance: float
    ) -> FourierFeatures:
        return FourierFeatures.draw_prior_functions(
            rng,
            self.hyperparameters.smoothness,
            width=width,
            features=features,
            count=count,
            variance=variance,
        )

    def _tabulate_term(self, group: int, waves: FourierFeatures, update: FloatArray) -> FloatArray:
        """Tabulate a one-dimensional term of every draw.

        The grid runs along a hyperparameter, or is the last epoch, or the two sides of the jump.
        """
        d = len(self.observations.params)
        param, grid = group, np.zeros(1)
        if group < d:
            levels = get_unit_levels(self.observations.distributions[group])
            grid = np.linspace(0.0, 1.0, _TERM_TABLE_SIZE) if levels is None else levels
        elif group > d:
            assert self.hyperparameters.jump is not None
            param, grid = self.hyperparameters.jump.param, np.array([-1.0, 2.0])
        units = np.full((len(grid), d), 0.5)
        if param < d:
            units[:, param] = grid
        inputs = self.encode_inputs(units, np.full(len(units), self.observations.full_epochs))
        return np.asarray(
            self._evaluate_prior_term(waves, inputs, group)
            + self.additive_covariance(inputs, group) @ update
        )

    def _evaluate_prior_term(
        self, waves: FourierFeatures, inputs: FloatArray, group: int
    ) -> FloatArray:
        """Evaluate the prior functions of a one-dimensional term."""
        columns = self.encoding.columns_in_group(group)
        return waves(inputs[:, columns] / self.length_scales[columns])


@dataclass(frozen=True)
class SamplePaths:
    """Functions drawn from a posterior at the last epoch; callable at any points."""

    posterior: GPPosterior
    joint_features: FourierFeatures
    term_tables: tuple[FloatArray, ...]
    side_table: FloatArray | None
    level: FloatArray
    update: FloatArray

    def __call__(self, units: FloatArray) -> FloatArray:
        """Return draws x points, in units of the score, without noise."""
        posterior, hyperparameters = self.posterior, self.posterior.hyperparameters
        epochs = np.full(len(units), posterior.observations.full_epochs)
        lengths = posterior.joint_length_scales
        inputs = posterior.encode_inputs(units, epochs) / lengths
        r2 = compute_squared_distances(inputs, posterior.inputs / lengths).astype(np.float32)
        kernel = evaluate_kernel(r2, hyperparameters.smoothness)
        values = kernel @ (hyperparameters.joint_variance * self.update).astype(np.float32)
        values = values + self.joint_features(inputs) + self.level
        for j, table in enumerate(self.term_tables):
            values += _interpolate_table(
                table, units[:, j], posterior.observations.distributions[j]
            )
        if hyperparameters.jump is not None and self.side_table is not None:
            beyond = units[:, hyperparameters.jump.param] > hyperparameters.jump.position
            values += self.side_table[beyond.astype(np.int64)]
        return posterior.score_transform.to_score(values.T)


def _interpolate_table(
    table: FloatArray, places: FloatArray, distribution: BaseDistribution
) -> FloatArray:
    """Return rows of a table at positions: the level itself, or linear between grid points."""
    levels = get_unit_levels(distribution)
    if levels is not None:
        return np.asarray(table[np.abs(places[:, None] - levels[None, :]).argmin(axis=1)])
    at = np.clip(places, 0.0, 1.0) * (_TERM_TABLE_SIZE - 1)
    left = np.minimum(at.astype(np.int64), _TERM_TABLE_SIZE - 2)
    share = (at - left)[:, None]
    return np.asarray(table[left] * (1.0 - share) + table[left + 1] * share)


def predict_mixture(
    posteriors: Sequence[GPPosterior], units: FloatArray, epochs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return latent mean and deviation of a mixture of equally likely posteriors."""
    parts = [p.predict(units, epochs) for p in posteriors]
    mean = np.mean([m for m, _ in parts], axis=0)
    variance = np.mean([s**2 + (m - mean) ** 2 for m, s in parts], axis=0)
    return mean, np.sqrt(variance)
