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
from study.analyses.evidence import JITTER, Evidence, Fitted, best_shape
from study.analyses.kernel import correlation, squared_distances
from study.analyses.samples import Array, Samples, unit_levels
from study.analyses.warp import Standard

LEAST_SIDE = 4
"""A side of a cliff has at least this many trials."""

HOPELESS = 10.0
"""Log evidence that another smoothness is not expected to make up for."""

LEAST_HEIGHT = 0.5
"""A cliff is at least so many standard deviations of the scores high."""

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
    # A smooth process bends to a cliff with short lengths, and then a step adds little to it: a
    # process that has not bent is asked, too.
    unbent = Fitted(evidence.prior_mean, fitted.smoothness)
    likely = {int(_screen(evidence, by, places).argmax()) for by in (fitted, unbent)}
    price = float(np.log(len(places))) + CONVINCING
    tried = []
    for place in sorted(likely):
        beside = Evidence(
            samples,
            standard,
            smoothness=fitted.smoothness,
            cliff=places[place],
            most=most,
            seed=seed,
        )
        starts = (_with_side(fitted), beside.prior_mean)
        value, theta = min((beside.maximise(start, 20) for start in starts), key=lambda t: t[0])
        tried.append((value, place, beside, theta))
    value, _, beside, theta = min(tried, key=lambda each: each[:2])
    if value > lowest + HOPELESS:
        return None
    # How smooth the rest is could not be told with the cliff in it.
    value, best = best_shape(beside, [theta], steps=30)
    return best if value < lowest - price else None


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
    y, out = standard.latent(samples.scores), []
    encoding = Encoding.of(samples.distributions, fitted.cliff)
    inputs = encoding(samples.units, samples.epochs, samples.full_epochs)
    rest = _apart_from_joint(samples, fitted, encoding, inputs, encoding.groups - 1)
    lengths = fitted.joint_lengths[encoding.group_of]
    near = squared_distances(inputs[:, :-1] / lengths[:-1], inputs[:, :-1] / lengths[:-1])
    apart = 1.0 / lengths[-1] ** 2
    alone_apart = np.array([0.0, 1.0 / fitted.lengths[-1] ** 2])
    side_alone = fitted.alone * correlation(alone_apart, fitted.smoothness)
    for place in places:
        side = samples.units[:, fitted.cliff.knob] > place
        other = side[:, None] != side[None, :]
        covariance = rest + np.where(other, side_alone[1], side_alone[0])
        covariance += fitted.joint * correlation(near + apart * other, fitted.smoothness)
        factor = cholesky(covariance, lower=True, check_finite=False)
        alpha = cho_solve((factor, True), y, check_finite=False)
        out.append(-0.5 * float(y @ alpha) - float(np.log(np.diag(factor)).sum()))
    return np.array(out)


def _apart_from_joint(
    rows: Samples, fitted: Fitted, encoding: Encoding, inputs: Array, groups: int
) -> Array:
    """Covariance of the rows by noise, level and the first one-dimensional terms."""
    covariance = fitted.trial * (rows.trial[:, None] == rows.trial[None, :]) + 1.0
    for group in range(groups):
        columns = inputs[:, encoding.columns_of(group)] / fitted.lengths[group]
        r2 = squared_distances(columns, columns)
        covariance += fitted.alone * correlation(r2, fitted.smoothness)
    covariance.flat[:: len(rows) + 1] += fitted.noise + JITTER
    return np.asarray(covariance)


def _places(rows: Samples) -> list[Cliff]:
    """Middles of the gaps between trials along every numeric knob."""
    out = []
    for j, distribution in enumerate(rows.distributions):
        if not _continuous(distribution):
            continue
        seen = np.unique(rows.units[rows.last, j])
        middles = 0.5 * (seen[1:] + seen[:-1])[LEAST_SIDE - 1 : len(seen) - LEAST_SIDE]
        out += [Cliff(j, float(m)) for m in middles]
    return out


def _continuous(distribution: BaseDistribution) -> bool:
    return unit_levels(distribution) is None


def _screen(evidence: Evidence, fitted: Fitted, places: Sequence[Cliff]) -> Array:
    """Log evidence that a step of the spread of the scores at each place would add (rank one)."""
    rows = evidence.rows
    encoding = Encoding.of(rows.distributions)
    inputs = encoding(rows.units, rows.epochs, rows.full_epochs)
    covariance = _apart_from_joint(rows, fitted, encoding, inputs, encoding.groups)
    inputs = inputs / fitted.joint_lengths[encoding.group_of]
    covariance += fitted.joint * correlation(squared_distances(inputs, inputs), fitted.smoothness)
    factor = cholesky(covariance, lower=True, check_finite=False)
    steps = np.stack([(rows.units[:, c.knob] > c.place) - 0.5 for c in places], axis=1)
    solved = cho_solve((factor, True), steps, check_finite=False)
    pull, stiff = solved.T @ evidence.y, (steps * solved).sum(axis=0)
    return np.asarray(0.5 * (pull**2 / (1.0 + stiff) - np.log1p(stiff)))


def _with_side(fitted: Fitted) -> Array:
    """Hyperparameters with a length and a ratio for the side of a cliff."""
    theta, g = fitted.theta, fitted.groups
    return np.concatenate([theta[:g], [np.log(0.7)], theta[g : 2 * g], [0.3], theta[-4:]])
