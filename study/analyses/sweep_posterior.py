"""How well do a few seeds at each value of a sweep know the curve?

Draws of the mean score at every value, given the seeds' scores. Values that a claim holds to be
alike share a level and a spread around it, both unknown (random effects with a uniform prior of the
spread; Gelman 2006): the best of many noisy means is not taken for better than it is, nor the worst
for worse. All other values stand for themselves, with the flat prior of an interval over seeds.
"""

from __future__ import annotations

import numpy as np

from study.analyses.samples import Array
from study.analyses.sweeps import Sweep

DRAWS = 4000
LEAST_FREEDOM = 2
"""With fewer repeated seeds a sweep does not know its own noise, and says nothing."""


def draw(sweep: Sweep, alike: np.ndarray, *, worst: float, seed: int = 0) -> Array | None:
    """Draws x values; None where too few seeds were repeated to know their noise.

    Where some seeds diverged, a mean is the expected score when a diverged trial counts as `worst`.
    """
    means, counts = _means(sweep, worst)
    square, freedom = _noise(sweep)
    if freedom < LEAST_FREEDOM:
        return None
    rng = np.random.default_rng(seed)
    # A floor: scores that agree to the last digit are rounded, not certain.
    sigma = np.sqrt(max(square, 1e-18) * freedom / rng.chisquare(freedom, DRAWS))
    errors = sigma[:, None] / np.sqrt(counts)
    values = means + errors * rng.standard_normal((DRAWS, len(means)))
    if alike.sum() > 2:
        values[:, alike] = _shrunk(means[alike], errors[:, alike], rng)
    for i, by_seed in enumerate(sweep.scores):
        lost = int(np.isnan(list(by_seed.values())).sum())
        if lost:
            chance = rng.beta(lost + 0.5, len(by_seed) - lost + 0.5, DRAWS)
            values[:, i] = values[:, i] * (1 - chance) + worst * chance
    return np.asarray(values)


def _means(sweep: Sweep, worst: float) -> tuple[Array, Array]:
    """Mean and number of the scores at each value."""
    means, counts = [], []
    for by_seed in sweep.scores:
        scores = np.array(list(by_seed.values()))
        scores = scores[np.isfinite(scores)]
        means.append(float(scores.mean()) if len(scores) else worst)
        counts.append(float(max(len(scores), 1)))
    return np.array(means), np.array(counts)


def _noise(sweep: Sweep) -> tuple[float, int]:
    """Variance that is left between seeds at one value, and its degrees of freedom.

    Where every value has the same seeds, what a seed does to all values cancels in differences and
    is no part of it.
    """
    rows = [by_seed for by_seed in sweep.scores if len(by_seed)]
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in rows)))
    table = np.array([[by_seed[s] for s in seeds] for by_seed in rows])
    if all(len(by_seed) == len(seeds) for by_seed in rows) and np.isfinite(table).all():
        left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        freedom = (len(rows) - 1) * (len(seeds) - 1)
        return float((left**2).sum()) / max(freedom, 1), freedom
    squares, freedom = 0.0, 0
    for by_seed in rows:
        scores = np.array([v for v in by_seed.values() if np.isfinite(v)])
        if len(scores) > 1:
            squares += float(((scores - scores.mean()) ** 2).sum())
            freedom += len(scores) - 1
    return squares / max(freedom, 1), freedom


def _shrunk(means: Array, errors: Array, rng: np.random.Generator, *, steps: int = 48) -> Array:
    """Draws of values around a common level; the spread is drawn from its posterior first."""
    widest = 2.0 * float(np.ptp(means)) + 6.0 * float(np.median(errors))
    spreads = widest * (np.arange(steps) + 0.5) / steps
    weights = 1.0 / (spreads[None, :, None] ** 2 + errors[:, None, :] ** 2)
    total = weights.sum(axis=-1)
    level = (weights * means).sum(axis=-1) / total
    misfit = (weights * (means - level[..., None]) ** 2).sum(axis=-1)
    likely = 0.5 * (np.log(weights).sum(axis=-1) - np.log(total) - misfit)
    pick = (likely + rng.gumbel(size=likely.shape)).argmax(axis=1)
    row = np.arange(len(pick))
    tau = spreads[pick][:, None]
    centre = level[row, pick] + rng.standard_normal(len(pick)) / np.sqrt(total[row, pick])
    precision = errors**-2 + tau**-2
    middle = (means * errors**-2 + centre[:, None] * tau**-2) / precision
    return np.asarray(middle + rng.standard_normal(middle.shape) / np.sqrt(precision))
