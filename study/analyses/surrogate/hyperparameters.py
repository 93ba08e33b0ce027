"""Hyperparameters of the Gaussian process: posterior, optimisation and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from study.analyses.surrogate.encoding import InputEncoding, ResponseDiscontinuity
from study.analyses.surrogate.kernel import (
    KERNEL_SMOOTHNESSES,
    KernelSmoothness,
    evaluate_kernel_and_slope,
)
from study.analyses.surrogate.observations import FloatArray, LossObservations
from study.analyses.surrogate.score_transform import ScoreTransform

COVARIANCE_JITTER = 1e-8


@dataclass(frozen=True)
class GPHyperparameters:
    """Hyperparameters of the process: kernel smoothness, log length scales, variances and a jump.

    Each group of inputs has a length scale for its one-dimensional term and another one for the
    joint term over all inputs, so that a hyperparameter can matter on its own without interacting.
    The joint length scale is stored as a log ratio to the first one.

    Args:
        theta: Logarithms of length scales, of their ratios, and of four variances.
        smoothness: Kernel.
        jump: Discontinuity of the response, if any.
    """

    theta: FloatArray
    smoothness: KernelSmoothness
    jump: ResponseDiscontinuity | None = None

    @property
    def n_groups(self) -> int:
        """Number of length scales of the one-dimensional terms."""
        return (len(self.theta) - 4) // 2

    @property
    def length_scales(self) -> FloatArray:
        """Length scale of each one-dimensional term."""
        return np.asarray(np.exp(self.theta[: self.n_groups]))

    @property
    def joint_length_scales(self) -> FloatArray:
        """Length scale of each group in the term over all inputs."""
        ratios = self.theta[self.n_groups : 2 * self.n_groups]
        return np.asarray(np.exp(self.theta[: self.n_groups] + ratios))

    @property
    def additive_variance(self) -> float:
        """Variance of each one-dimensional term."""
        return float(np.exp(self.theta[-4])) / self.n_groups

    @property
    def joint_variance(self) -> float:
        """Variance of the term over all inputs."""
        return float(np.exp(self.theta[-3]))

    @property
    def trial_variance(self) -> float:
        """Variance that the seed adds to all epochs of a trial."""
        return float(np.exp(self.theta[-2]))

    @property
    def noise_variance(self) -> float:
        """Variance that remains at a single epoch."""
        return float(np.exp(self.theta[-1]))


class NegativeLogPosterior:
    """Negative log posterior of the hyperparameters, with gradient, on at most `max_rows` rows."""

    def __init__(
        self,
        observations: LossObservations,
        transform: ScoreTransform,
        *,
        smoothness: KernelSmoothness = "smooth",
        jump: ResponseDiscontinuity | None = None,
        max_rows: int = 180,
        seed: int = 0,
    ) -> None:
        self.rows = _subsample_rows(observations, max_rows, seed)
        self.smoothness, self.jump = smoothness, jump
        encoding = InputEncoding.from_distributions(observations.distributions, jump)
        inputs = encoding(self.rows.units, self.rows.epochs, observations.full_epochs)
        self.y, self.n_groups = transform.to_latent(self.rows.scores), encoding.n_groups
        n, g = len(self.y), encoding.n_groups
        # Covariances are symmetric: the lower triangle, flattened, is enough.
        self.lower_triangle = np.tril_indices(n)
        row, column = self.lower_triangle
        squares = np.zeros((g, len(row)))
        for k, group in enumerate(encoding.column_groups):
            gap = inputs[row, k] - inputs[column, k]
            squares[group] += gap * gap
        self.squared_gaps = squares
        self.diagonal = row == column
        self.same_trial = (self.rows.trial[row] == self.rows.trial[column]).astype(np.float64)
        # With one row per trial, the two noise terms coincide: the seed's is fixed near zero.
        self.has_repeated_trials = bool(self.same_trial.sum() > n)
        # Length scales near the width of the cube, longer with more hyperparameters.
        d = encoding.n_params
        side = [] if jump is None else [np.log(0.7)]
        params = np.full(d, np.log(0.6) + 0.25 * np.log(max(d, 1)))
        ratios = [*np.full(d, 0.3), 1.0, *(0.3 for _ in side)]
        self.prior_mean = np.array([*params, np.log(0.8), *side, *ratios, 0.0, -0.7, -3.5, -4.0])
        lengths_sd = [*np.full(d, 1.1), 0.8, *(0.7 for _ in side)]
        self.prior_sd = np.array([*lengths_sd, *np.full(g, 1.0), 1.2, 1.5, 1.5, 1.7])
        seeds = np.log([1e-7, np.e if self.has_repeated_trials else 1e-7])
        self.bounds = np.array(
            [np.log([0.03, 30.0])] * g
            + [np.array([-1.5, 5.0])] * g
            + [np.log([1e-4, 50.0])] * 2
            + [seeds, np.log([1e-6, np.e])]
        )

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Return value and gradient, up to a constant."""
        n, g = len(self.y), self.n_groups
        alone, joint, trial, noise = np.exp(theta[2 * g :])
        scaled = self.squared_gaps * np.exp(-2.0 * theta[:g])[:, None]
        together = scaled * np.exp(-2.0 * theta[g : 2 * g])[:, None]
        each, each_slope = evaluate_kernel_and_slope(scaled, self.smoothness)
        shape, shape_slope = evaluate_kernel_and_slope(together.sum(axis=0), self.smoothness)
        terms = each.mean(axis=0)
        half = alone * terms + joint * shape + trial * self.same_trial + 1.0
        half[self.diagonal] += noise + COVARIANCE_JITTER
        covariance = np.zeros((n, n))
        covariance[self.lower_triangle] = half
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        alpha = cho_solve((factor, True), self.y, check_finite=False)
        value = 0.5 * self.y @ alpha + np.log(np.diag(factor)).sum()
        inverse = dpotri(factor, lower=1)[0][self.lower_triangle]
        weight = inverse - alpha[self.lower_triangle[0]] * alpha[self.lower_triangle[1]]
        # An off-diagonal entry counts twice.
        weight[self.diagonal] *= 0.5
        gradient = np.empty_like(theta)
        gradient[g : 2 * g] = joint * (together @ (shape_slope * weight))
        gradient[:g] = (alone / g) * ((each_slope * scaled) @ weight) + gradient[g : 2 * g]
        gradient[-4] = alone * float(weight @ terms)
        gradient[-3] = joint * float(weight @ shape)
        gradient[-2] = trial * float(weight @ self.same_trial) if self.has_repeated_trials else 0.0
        gradient[-1] = noise * float(weight[self.diagonal].sum())
        pull = (theta - self.prior_mean) / self.prior_sd
        return float(value + 0.5 * pull @ pull), gradient + pull / self.prior_sd

    def minimise_from(self, start: FloatArray, steps: int) -> tuple[float, FloatArray]:
        """Minimise from one start; return the lowest value and its position."""
        start = np.clip(start, self.bounds[:, 0], self.bounds[:, 1])
        result = minimize(
            self, start, jac=True, method="L-BFGS-B", bounds=self.bounds, options={"maxiter": steps}
        )
        return float(result.fun), np.asarray(result.x)

    def with_smoothness(self, smoothness: KernelSmoothness) -> NegativeLogPosterior:
        """Return the same objective with another kernel."""
        other = object.__new__(NegativeLogPosterior)
        other.__dict__.update(self.__dict__, smoothness=smoothness)
        return other


def fit_best_smoothness(
    objective: NegativeLogPosterior, starts: Sequence[FloatArray], *, steps: int
) -> tuple[float, GPHyperparameters]:
    """Return value and hyperparameters of highest posterior over all kernels.

    The first kernel is optimised from every start, the others from the first kernel's optimum.
    """
    order: tuple[KernelSmoothness, ...] = (
        "smooth",
        *(s for s in KERNEL_SMOOTHNESSES if s != "smooth"),
    )
    fits: list[tuple[float, GPHyperparameters]] = []
    for smoothness in order:
        shaped = objective.with_smoothness(smoothness)
        first = [fits[0][1].theta] if fits else starts
        tries = [shaped.minimise_from(s, steps if not fits else steps // 2) for s in first]
        value, theta = min(tries, key=lambda t: t[0])
        fits.append((value, GPHyperparameters(theta, smoothness, objective.jump)))
    best = min(fits, key=lambda f: f[0])[1]
    value, theta = objective.with_smoothness(best.smoothness).minimise_from(best.theta, steps)
    return value, replace(best, theta=theta)


def sample_hyperparameters(
    observations: LossObservations,
    transform: ScoreTransform,
    hyperparameters: GPHyperparameters,
    *,
    count: int,
    seed: int,
    max_rows: int = 180,
) -> list[GPHyperparameters]:
    """Draw hyperparameters from the Laplace approximation of their posterior.

    A draw at which the posterior is much lower than the approximation says is moved towards the
    mode.
    """
    objective = NegativeLogPosterior(
        observations,
        transform,
        smoothness=hyperparameters.smoothness,
        jump=hyperparameters.jump,
        max_rows=max_rows,
        seed=seed,
    )
    lowest, centre = objective(hyperparameters.theta)[0], hyperparameters.theta
    size, step = len(centre), 0.1
    hessian = np.empty((size, size))
    for i in range(size):
        shift = np.eye(size)[i] * step
        hessian[i] = (objective(centre + shift)[1] - objective(centre - shift)[1]) / (2 * step)
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    # The posterior is at least as certain as the prior in every direction.
    spread = vectors / np.sqrt(np.maximum(values, 1.0 / objective.prior_sd.max() ** 2))
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        z = rng.standard_normal(size)
        for _ in range(4):
            theta = np.clip(centre + spread @ z, objective.bounds[:, 0], objective.bounds[:, 1])
            if objective(theta)[0] - lowest <= 0.5 * float(z @ z) + 2.0:
                break
            z = 0.6 * z
        out.append(replace(hyperparameters, theta=theta))
    return out


def _subsample_rows(observations: LossObservations, max_rows: int, seed: int) -> LossObservations:
    """Select at most `max_rows` rows: last epochs first, Sobol and repeated points before others.

    A search clusters where the score is high and flat; length scales fitted there alone would be
    wrong for the rest of the space, and bands far too narrow. Repeated seeds separate noise from
    roughness, which a few scattered points cannot do. Early epochs carry the least information
    about the hyperparameters.
    """
    if len(observations) <= max_rows:
        return observations
    last = observations.select_rows(observations.last)
    repeated = np.bincount(last.point, minlength=int(observations.point.max()) + 1) > 1
    preferred = observations.blind | repeated[observations.point]
    rng = np.random.default_rng(seed)
    trial_order = rng.permutation(int(observations.trial.max()) + 1)[observations.trial]
    order = np.lexsort((trial_order, ~preferred, ~observations.last))
    return observations.select_rows(np.sort(order[:max_rows]))
