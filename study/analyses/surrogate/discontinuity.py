"""Discontinuities: finding a jump of the response and sampling where it is.

A smooth process is wrong on both sides of a jump. A jump along one hyperparameter is detected by
the log evidence it adds, and its side becomes an input of the process. The position is known only
up to the gap between the nearest trials, so it is drawn from that gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from optuna.distributions import BaseDistribution
from scipy.linalg import cho_solve, cholesky

from study.analyses.surrogate.encoding import InputEncoding, ResponseDiscontinuity
from study.analyses.surrogate.hyperparameters import (
    COVARIANCE_JITTER,
    GPHyperparameters,
    NegativeLogPosterior,
    fit_best_smoothness,
)
from study.analyses.surrogate.kernel import compute_squared_distances, evaluate_kernel
from study.analyses.surrogate.observations import FloatArray, LossObservations, get_unit_levels
from study.analyses.surrogate.score_transform import ScoreTransform

MIN_TRIALS_PER_SIDE = 4
"""Minimum number of trials on each side of a jump."""

MAX_LOG_EVIDENCE_DEFICIT = 10.0
"""Log evidence that another kernel is not expected to make up for."""

MIN_JUMP_HEIGHT_SD = 0.5
"""Minimum height of a jump, in standard deviations of the scores."""

MIN_LOG_EVIDENCE_GAIN = 3.0
"""Log evidence that a jump must add, beyond the logarithm of the number of candidate positions."""


def find_discontinuity(
    observations: LossObservations,
    transform: ScoreTransform,
    hyperparameters: GPHyperparameters,
    *,
    lowest: float,
    max_rows: int,
    seed: int,
) -> GPHyperparameters | None:
    """Return the process with the best jump, or None if no jump is convincing.

    Args:
        lowest: Negative log posterior of `hyperparameters` on the same rows.
    """
    objective = NegativeLogPosterior(
        observations, transform, smoothness=hyperparameters.smoothness, max_rows=max_rows, seed=seed
    )
    candidates = _candidate_discontinuities(objective.rows)
    if not candidates:
        return None
    # The fitted process may have adapted to the jump with short length scales, and then a step adds
    # little. The prior mean, which has not adapted, screens the candidates as well.
    prior = GPHyperparameters(objective.prior_mean, hyperparameters.smoothness)
    best_candidates = {
        int(_screen_candidates(objective, screening, candidates).argmax())
        for screening in (hyperparameters, prior)
    }
    required_gain = float(np.log(len(candidates))) + MIN_LOG_EVIDENCE_GAIN
    fits = []
    for index in sorted(best_candidates):
        jump_objective = NegativeLogPosterior(
            observations,
            transform,
            smoothness=hyperparameters.smoothness,
            jump=candidates[index],
            max_rows=max_rows,
            seed=seed,
        )
        starts = (_add_side_hyperparameters(hyperparameters), jump_objective.prior_mean)
        value, theta = min(
            (jump_objective.minimise_from(start, 20) for start in starts), key=lambda t: t[0]
        )
        fits.append((value, index, jump_objective, theta))
    value, _, jump_objective, theta = min(fits, key=lambda fit: fit[:2])
    if value > lowest + MAX_LOG_EVIDENCE_DEFICIT:
        return None
    # The kernel was chosen with the jump unexplained, so it is chosen again.
    value, best = fit_best_smoothness(jump_objective, [theta], steps=30)
    return best if value < lowest - required_gain else None


def sample_locations(
    observations: LossObservations,
    transform: ScoreTransform,
    hyperparameters: GPHyperparameters,
    *,
    count: int,
    seed: int,
    reach: int = 6,
) -> list[GPHyperparameters]:
    """Return the process with its jump at `count` positions drawn from their posterior."""
    jump = hyperparameters.jump
    if jump is None:
        return [hyperparameters]
    edges = np.unique(observations.units[:, jump.param])
    at = int(np.searchsorted(edges, jump.position))
    first, last = max(at - reach, 1), min(at + reach, len(edges) - 1)
    low, high = edges[first - 1 : last], edges[first : last + 1]
    keep = high - low > 1e-9
    low, high = low[keep], high[keep]
    log_evidence = _location_log_evidence(
        observations, transform, hyperparameters, 0.5 * (low + high)
    )
    weight = np.exp(log_evidence - log_evidence.max()) * (high - low)
    rng = np.random.default_rng(seed)
    # Systematic sampling: each gap gets its expected share of the positions.
    steps = (np.arange(count) + rng.random()) / count
    gap = np.searchsorted(np.cumsum(weight / weight.sum()), steps * (1 - 1e-12))
    positions = low[gap] + rng.random(count) * (high - low)[gap]
    return [
        replace(hyperparameters, jump=ResponseDiscontinuity(jump.param, float(p)))
        for p in positions
    ]


def _location_log_evidence(
    observations: LossObservations,
    transform: ScoreTransform,
    hyperparameters: GPHyperparameters,
    positions: FloatArray,
) -> FloatArray:
    """Return the log evidence of all rows for each position of the jump, all else equal."""
    assert hyperparameters.jump is not None
    y, out = transform.to_latent(observations.scores), []
    encoding = InputEncoding.from_distributions(observations.distributions, hyperparameters.jump)
    inputs = encoding(observations.units, observations.epochs, observations.full_epochs)
    rest = _covariance_without_joint_term(
        observations, hyperparameters, encoding, inputs, encoding.n_groups - 1
    )
    lengths = hyperparameters.joint_length_scales[encoding.column_groups]
    near = compute_squared_distances(inputs[:, :-1] / lengths[:-1], inputs[:, :-1] / lengths[:-1])
    apart = 1.0 / lengths[-1] ** 2
    alone_apart = np.array([0.0, 1.0 / hyperparameters.length_scales[-1] ** 2])
    side_alone = hyperparameters.additive_variance * evaluate_kernel(
        alone_apart, hyperparameters.smoothness
    )
    for position in positions:
        side = observations.units[:, hyperparameters.jump.param] > position
        other = side[:, None] != side[None, :]
        covariance = rest + np.where(other, side_alone[1], side_alone[0])
        covariance += hyperparameters.joint_variance * evaluate_kernel(
            near + apart * other, hyperparameters.smoothness
        )
        factor = cholesky(covariance, lower=True, check_finite=False)
        alpha = cho_solve((factor, True), y, check_finite=False)
        out.append(-0.5 * float(y @ alpha) - float(np.log(np.diag(factor)).sum()))
    return np.array(out)


def _covariance_without_joint_term(
    rows: LossObservations,
    hyperparameters: GPHyperparameters,
    encoding: InputEncoding,
    inputs: FloatArray,
    groups: int,
) -> FloatArray:
    """Return the covariance of the rows from noise, level and the first one-dimensional terms."""
    covariance = hyperparameters.trial_variance * (rows.trial[:, None] == rows.trial[None, :]) + 1.0
    for group in range(groups):
        columns = inputs[:, encoding.columns_in_group(group)] / hyperparameters.length_scales[group]
        r2 = compute_squared_distances(columns, columns)
        covariance += hyperparameters.additive_variance * evaluate_kernel(
            r2, hyperparameters.smoothness
        )
    covariance.flat[:: len(rows) + 1] += hyperparameters.noise_variance + COVARIANCE_JITTER
    return np.asarray(covariance)


def _candidate_discontinuities(rows: LossObservations) -> list[ResponseDiscontinuity]:
    """Return the midpoints of the gaps between trials along every continuous hyperparameter."""
    out = []
    for j, distribution in enumerate(rows.distributions):
        if not _is_continuous(distribution):
            continue
        tried = np.unique(rows.units[rows.last, j])
        middles = (
            0.5
            * (tried[1:] + tried[:-1])[MIN_TRIALS_PER_SIDE - 1 : len(tried) - MIN_TRIALS_PER_SIDE]
        )
        out += [ResponseDiscontinuity(j, float(m)) for m in middles]
    return out


def _is_continuous(distribution: BaseDistribution) -> bool:
    return get_unit_levels(distribution) is None


def _screen_candidates(
    objective: NegativeLogPosterior,
    hyperparameters: GPHyperparameters,
    candidates: Sequence[ResponseDiscontinuity],
) -> FloatArray:
    """Return the log evidence that a step at each position would add (a rank-one update)."""
    rows = objective.rows
    encoding = InputEncoding.from_distributions(rows.distributions)
    inputs = encoding(rows.units, rows.epochs, rows.full_epochs)
    covariance = _covariance_without_joint_term(
        rows, hyperparameters, encoding, inputs, encoding.n_groups
    )
    inputs = inputs / hyperparameters.joint_length_scales[encoding.column_groups]
    covariance += hyperparameters.joint_variance * evaluate_kernel(
        compute_squared_distances(inputs, inputs), hyperparameters.smoothness
    )
    factor = cholesky(covariance, lower=True, check_finite=False)
    steps = np.stack([(rows.units[:, c.param] > c.position) - 0.5 for c in candidates], axis=1)
    solved = cho_solve((factor, True), steps, check_finite=False)
    gain, stiffness = solved.T @ objective.y, (steps * solved).sum(axis=0)
    return np.asarray(0.5 * (gain**2 / (1.0 + stiffness) - np.log1p(stiffness)))


def _add_side_hyperparameters(hyperparameters: GPHyperparameters) -> FloatArray:
    """Return `theta` with a length scale and a ratio for the side of the jump."""
    theta, g = hyperparameters.theta, hyperparameters.n_groups
    return np.concatenate([theta[:g], [np.log(0.7)], theta[g : 2 * g], [0.3], theta[-4:]])
