"""How well do a few seeds per value of a sweep determine its curve?

Draws of the mean score at every value, given the scores of the seeds. Values that a claim says are
equivalent share a level and a spread around it, both unknown (random effects with a uniform prior
of the spread; Gelman 2006), so that the best of many noisy means is not overestimated and the worst
not underestimated. All other values are independent, with the flat prior of an interval over seeds.
"""

from __future__ import annotations

import numpy as np

from study.analyses.surrogate.observations import FloatArray
from study.analyses.sweeps import ParamSweep

N_POSTERIOR_DRAWS = 4000
MIN_SWEEP_DEGREES_OF_FREEDOM = 2
"""With fewer repeated seeds, the noise of a sweep is unknown and it decides nothing."""


def draw_sweep_means(
    sweep: ParamSweep, alike: np.ndarray, *, worst: float, seed: int = 0
) -> FloatArray | None:
    """Draw the mean score at every value: draws x values; None if too few seeds were repeated.

    Where some seeds diverged, the mean is the expected score if a diverged trial counts as `worst`.

    Args:
        alike: Mask of the values that the claim says are equivalent.
        worst: Score of a diverged trial.
    """
    means, counts = _mean_scores(sweep, worst)
    variance, freedom = _residual_variance(sweep)
    if freedom < MIN_SWEEP_DEGREES_OF_FREEDOM:
        return None
    rng = np.random.default_rng(seed)
    # Lower bound: scores that agree to the last digit are rounded, not certain.
    sigma = np.sqrt(max(variance, 1e-18) * freedom / rng.chisquare(freedom, N_POSTERIOR_DRAWS))
    errors = sigma[:, None] / np.sqrt(counts)
    values = means + errors * rng.standard_normal((N_POSTERIOR_DRAWS, len(means)))
    if alike.sum() > 2:
        values[:, alike] = _draw_shrunk_means(means[alike], errors[:, alike], rng)
    for i, by_seed in enumerate(sweep.scores):
        diverged = int(np.isnan(list(by_seed.values())).sum())
        if diverged:
            chance = rng.beta(diverged + 0.5, len(by_seed) - diverged + 0.5, N_POSTERIOR_DRAWS)
            values[:, i] = values[:, i] * (1 - chance) + worst * chance
    return np.asarray(values)


def _mean_scores(sweep: ParamSweep, worst: float) -> tuple[FloatArray, FloatArray]:
    """Return mean and number of the scores at each value."""
    means, counts = [], []
    for by_seed in sweep.scores:
        scores = np.array(list(by_seed.values()))
        scores = scores[np.isfinite(scores)]
        means.append(float(scores.mean()) if len(scores) else worst)
        counts.append(float(max(len(scores), 1)))
    return np.array(means), np.array(counts)


def _residual_variance(sweep: ParamSweep) -> tuple[float, int]:
    """Return the variance between seeds at one value, and its degrees of freedom.

    If every value has the same seeds, what a seed does to all values cancels in differences and is
    excluded.
    """
    rows = [by_seed for by_seed in sweep.scores if len(by_seed)]
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in rows)))
    table = np.array([[by_seed[s] for s in seeds] for by_seed in rows])
    if all(len(by_seed) == len(seeds) for by_seed in rows) and np.isfinite(table).all():
        residuals = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        freedom = (len(rows) - 1) * (len(seeds) - 1)
        return float((residuals**2).sum()) / max(freedom, 1), freedom
    squares, freedom = 0.0, 0
    for by_seed in rows:
        scores = np.array([v for v in by_seed.values() if np.isfinite(v)])
        if len(scores) > 1:
            squares += float(((scores - scores.mean()) ** 2).sum())
            freedom += len(scores) - 1
    return squares / max(freedom, 1), freedom


def _draw_shrunk_means(
    means: FloatArray, errors: FloatArray, rng: np.random.Generator, *, steps: int = 48
) -> FloatArray:
    """Draw values around a common level; the spread is drawn from its posterior first."""
    widest = 2.0 * float(np.ptp(means)) + 6.0 * float(np.median(errors))
    spreads = widest * (np.arange(steps) + 0.5) / steps
    weights = 1.0 / (spreads[None, :, None] ** 2 + errors[:, None, :] ** 2)
    total = weights.sum(axis=-1)
    level = (weights * means).sum(axis=-1) / total
    misfit = (weights * (means - level[..., None]) ** 2).sum(axis=-1)
    log_posterior = 0.5 * (np.log(weights).sum(axis=-1) - np.log(total) - misfit)
    pick = (log_posterior + rng.gumbel(size=log_posterior.shape)).argmax(axis=1)
    row = np.arange(len(pick))
    tau = spreads[pick][:, None]
    centre = level[row, pick] + rng.standard_normal(len(pick)) / np.sqrt(total[row, pick])
    precision = errors**-2 + tau**-2
    middle = (means * errors**-2 + centre[:, None] * tau**-2) / precision
    return np.asarray(middle + rng.standard_normal(middle.shape) / np.sqrt(precision))
