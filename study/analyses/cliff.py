"""Does the response jump somewhere, and where?

A smooth process beside a cliff is wrong on both sides of it. A jump along one knob is found by the
evidence it adds, and becomes an input of the process (the side of it); its place is known no better
than the gap between the nearest trials, so it is drawn from that gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from optuna.distributions import BaseDistribution
from scipy.linalg import cho_solve, cholesky

from study.analyses.encoding import Cliff, Encoding
from study.analyses.evidence import JITTER, Evidence, Fitted
from study.analyses.kernel import correlation, squared_distances
from study.analyses.samples import Array, Samples, unit_levels
from study.analyses.warp import Standard

LEAST_SIDE = 4
"""A side of a cliff has at least this many trials."""

CONVINCING = 3.0
"""Log evidence a cliff must add, beyond the logarithm of the places looked at."""


def find(
    samples: Samples, standard: Standard, fitted: Fitted, *, lowest: float, most: int, seed: int
) -> Fitted | None:
    """The process with the best cliff, or None where no cliff convinces.

    `lowest` is the negative log posterior of `fitted` on the same rows.
    """
    evidence = Evidence(samples, standard, smoothness=fitted.smoothness, most=most, seed=seed)
    places = _places(evidence.rows)
    if not places:
        return None
    gains = _screen(evidence, fitted, places)
    price = float(np.log(len(places))) + CONVINCING
    top = int(gains.argmax())
    if gains[top] < 1.0:
        return None
    beside = Evidence(
        samples, standard, smoothness=fitted.smoothness, cliff=places[top], most=most, seed=seed
    )
    # A smooth process bends to a cliff with short lengths, which it no longer needs.
    starts = (_with_side(fitted.theta), beside.prior_mean)
    value, theta = min((beside.maximise(s, 30) for s in starts), key=lambda found: found[0])
    return Fitted(theta, fitted.smoothness, places[top]) if value < lowest - price else None


def locate(
    samples: Samples, standard: Standard, fitted: Fitted, *, count: int, seed: int, reach: int = 6
) -> list[Fitted]:
    """The process with its cliff at `count` places drawn from their posterior, given all rows."""
    cliff = fitted.cliff
    if cliff is None:
        return [fitted]
    edges = np.unique(samples.units[:, cliff.knob])
    at = int(np.searchsorted(edges, cliff.place))
    first, last = max(at - reach, 1), min(at + reach, len(edges) - 1)
    low, high = edges[first - 1 : last], edges[first : last + 1]
    keep = high - low > 1e-9
    low, high = low[keep], high[keep]
    likely = _likely(samples, standard, fitted, 0.5 * (low + high))
    weight = np.exp(likely - likely.max()) * (high - low)
    rng = np.random.default_rng(seed)
    # Systematic draws: every gap gets its share of the places, not its luck.
    steps = (np.arange(count) + rng.random()) / count
    gap = np.searchsorted(np.cumsum(weight / weight.sum()), steps * (1 - 1e-12))
    place = low[gap] + rng.random(count) * (high - low)[gap]
    return [replace(fitted, cliff=Cliff(cliff.knob, float(p))) for p in place]


def _likely(samples: Samples, standard: Standard, fitted: Fitted, places: Array) -> Array:
    """Log evidence of all rows for each place of the cliff, all else equal."""
    assert fitted.cliff is not None
    y, n = standard.latent(samples.scores), len(samples)
    lengths, out = fitted.lengths, []
    encoding = Encoding.of(samples.distributions, fitted.cliff)
    inputs = encoding(samples.units, samples.epochs, samples.full_epochs)
    inputs = inputs / lengths[encoding.group_of]
    rest = fitted.trial * (samples.trial[:, None] == samples.trial[None, :]) + 1.0
    for group in range(encoding.groups - 1):
        columns = inputs[:, encoding.columns_of(group)]
        rest += fitted.alone * correlation(squared_distances(columns, columns), fitted.smoothness)
    rest.flat[:: n + 1] += fitted.noise + JITTER
    near = squared_distances(inputs[:, :-1], inputs[:, :-1])
    apart = 1.0 / lengths[-1] ** 2
    side_alone = fitted.alone * correlation(np.array([0.0, apart]), fitted.smoothness)
    for place in places:
        side = samples.units[:, fitted.cliff.knob] > place
        other = side[:, None] != side[None, :]
        covariance = rest + np.where(other, side_alone[1], side_alone[0])
        covariance += fitted.joint * correlation(near + apart * other, fitted.smoothness)
        factor = cholesky(covariance, lower=True, check_finite=False)
        alpha = cho_solve((factor, True), y, check_finite=False)
        out.append(-0.5 * float(y @ alpha) - float(np.log(np.diag(factor)).sum()))
    return np.array(out)


def _places(rows: Samples, *, most: int = 24) -> list[Cliff]:
    """Middles of the gaps between trials along every numeric knob."""
    out = []
    for j, distribution in enumerate(rows.distributions):
        if not _continuous(distribution):
            continue
        seen = np.unique(rows.units[rows.last, j])
        middles = 0.5 * (seen[1:] + seen[:-1])[LEAST_SIDE - 1 : len(seen) - LEAST_SIDE]
        if len(middles) > most:
            middles = middles[np.linspace(0, len(middles) - 1, most).astype(int)]
        out += [Cliff(j, float(m)) for m in middles]
    return out


def _continuous(distribution: BaseDistribution) -> bool:
    return unit_levels(distribution) is None


def _screen(evidence: Evidence, fitted: Fitted, places: Sequence[Cliff]) -> Array:
    """Log evidence that a step of the spread of the scores at each place would add (rank one)."""
    rows = evidence.rows
    encoding = Encoding.of(rows.distributions)
    inputs = encoding(rows.units, rows.epochs, rows.full_epochs)
    inputs = inputs / fitted.lengths[encoding.group_of]
    covariance = fitted.trial * (rows.trial[:, None] == rows.trial[None, :]) + 1.0
    covariance += fitted.joint * correlation(squared_distances(inputs, inputs), fitted.smoothness)
    for group in range(encoding.groups):
        columns = inputs[:, encoding.columns_of(group)]
        r2 = squared_distances(columns, columns)
        covariance += fitted.alone * correlation(r2, fitted.smoothness)
    covariance.flat[:: len(rows) + 1] += fitted.noise + JITTER
    factor = cholesky(covariance, lower=True, check_finite=False)
    steps = np.stack([(rows.units[:, c.knob] > c.place) - 0.5 for c in places], axis=1)
    solved = cho_solve((factor, True), steps, check_finite=False)
    pull, stiff = solved.T @ evidence.y, (steps * solved).sum(axis=0)
    return np.asarray(0.5 * (pull**2 / (1.0 + stiff) - np.log1p(stiff)))


def _with_side(theta: Array) -> Array:
    """Hyperparameters with a length for the side of a cliff."""
    return np.concatenate([theta[:-4], [np.log(0.7)], theta[-4:]])
