"""How well does a model predict settings it has not seen, and how sure may it be?

Five folds over points. Held-out errors say where the model is too sure of the response, and its
draws are spread by as much: by bins of the predicted score (as Mondrian conformal prediction does),
since a model that is right on average is often too sure about the few best settings, which are the
ones that are asked about. An error is the response's and the seed's: only the first is spread, so
the factor k solves error^2 = k^2 response^2 + seed^2, or noise would hide what the draws lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.stats import norm

from study.analyses import cliff, forest, gp
from study.analyses.evidence import Fitted
from study.analyses.samples import Array, Samples
from study.analyses.warp import Standard

Kind = Literal["gp", "log_gp", "forest"]

_BINS = (0.25, 0.75)
_PRIOR = 4.0
_FEW = 2.0
"""Rows in which a bin of draws that are neither too sure nor too careful is believed beforehand."""
_MOST = 3.0


@dataclass(frozen=True)
class Quality:
    """How well a model predicts points it has not seen (Sobol points, where there are enough).

    Args:
        r2: Share of the held-out variance explained beyond what the epoch alone explains.
        coverage: Share of held-out scores inside the model's 90 % interval.
        log_density: Mean log density of the held-out scores, once calibrated; the better model
            has more.
        stretch: Held-out errors in units of the model's own: 1 when it is neither too sure nor too
            careful.
        error: Root mean square of the held-out errors.
        spread: Pairs of a predicted score and the factor that draws are spread by there.
    """

    kind: Kind
    r2: float
    coverage: float
    log_density: float
    stretch: float = 1.0
    error: float = float("nan")
    spread: tuple[tuple[float, float], ...] = ()

    def factor(self, scores: Array) -> Array:
        """What draws must be spread by where this score is predicted."""
        if not self.spread:
            return np.ones_like(scores)
        at, factors = np.array(self.spread).T
        return np.asarray(np.interp(scores, at, factors))


@dataclass(frozen=True)
class _Held:
    """Held-out rows: their scores, predictions, errors and densities.

    Args:
        z: Errors in units of what the model expects of a new trial.
        own: Errors in units of what `share` is a share of.
        share: Which part of that variance is that of the draws; the rest is the seed's.
    """

    scores: Array
    mean: Array
    z: Array
    own: Array
    share: Array
    density: Array
    base: Array
    asked: np.ndarray


Predicted = tuple[Array, Array, Array, Array, Array]
"""`mean`, `z`, `own`, `share` and `density` of held-out rows (see `_Held`)."""


def of_process(
    samples: Samples, kind: Kind, standard: Standard, fitted: Fitted, seed: int
) -> Quality:
    """Quality of a Gaussian process of this shape."""

    def predict(train: Samples, test: Samples) -> Predicted:
        # Start away from the fit on all rows, or the held-out rows would have a say.
        start = replace(fitted, theta=np.round(fitted.theta))
        learned = gp.relearn(train, standard, start, seed=seed, most=130, steps=12)
        located = cliff.locate(train, standard, learned, count=5, seed=seed)
        posteriors = [gp.Posterior(train, each, standard) for each in located]
        m, s = gp.mixture(posteriors, test.units, test.epochs)
        latent = standard.latent(test.scores)
        density = norm.logpdf(latent, m, s) + np.log(standard.slope(test.scores))
        z = np.abs(latent - m) / s
        seeds = float(np.mean([each.trial + each.noise for each in located]))
        share = np.clip(1.0 - seeds / (s * s), 0.0, 1.0)
        return standard.moments(m, s)[0], z, z, share, density

    return _summary(kind, _validate(samples, predict, seed))


def of_forest(samples: Samples, seed: int) -> Quality:
    """Quality of a forest, and of its trees as draws."""

    def predict(train: Samples, test: Samples) -> Predicted:
        grown = forest.grow(train, seed=seed, trees=60)
        m, s, trees = grown.predict(test.units, test.epochs)
        s = np.maximum(s, 1e-9)
        gap = np.abs(test.scores - m)
        own = gap / np.maximum(trees, 1e-9)
        return m, gap / s, own, np.ones_like(own), norm.logpdf(test.scores, m, s)

    return _summary("forest", _validate(samples, predict, seed))


def _validate(
    samples: Samples,
    predict: Callable[[Samples, Samples], Predicted],
    seed: int,
) -> _Held:
    parts = []
    for train, test, asked in _folds(samples, seed):
        predicted = predict(train, test)
        parts.append((test.scores, *predicted, _by_epoch(train, test.epochs), asked))
    return _Held(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _summary(kind: Kind, held: _Held) -> Quality:
    asked = held.asked
    y, mean, base = held.scores[asked], held.mean[asked], held.base[asked]
    left = float(((y - mean) ** 2).sum())
    r2 = 1.0 - left / max(float(((y - base) ** 2).sum()), 1e-300)
    return Quality(
        kind,
        r2,
        coverage=float((held.z[asked] <= float(norm.ppf(0.95))).mean()),
        log_density=float(_calibrated(held.density[asked], held.z[asked]).mean()),
        stretch=_scale(held.own[asked]),
        error=float(np.sqrt(left / len(y))),
        spread=_spread(held),
    )


def _calibrated(density: Array, z: Array) -> Array:
    """Log densities had the model been as unsure as its errors say: what its draws will be."""
    scale = max(_scale(z), 1.0)
    return np.asarray(density + 0.5 * z * z * (1.0 - scale**-2) - np.log(scale))


def _spread(held: _Held) -> tuple[tuple[float, float], ...]:
    """The factor in three bins of the predicted score: the worst, the middle, the best."""
    edges = np.quantile(held.mean[held.asked], _BINS)
    place = np.digitize(held.mean, edges)
    out = []
    for k in range(len(_BINS) + 1):
        inside = place == k
        if inside.any():
            # A band that looks too careful in a few rows is left as it is.
            factor = float(np.clip(lacking(held.own[inside], held.share[inside]), 1.0, _MOST))
            out.append((float(np.median(held.mean[inside])), factor))
    return tuple(sorted(out))


def _scale(z: Array) -> float:
    """Root mean square of errors in units of the model's, few rows pulled to 1, outliers tamed."""
    return float(np.sqrt((np.minimum(z, 4.0) ** 2).sum() + _PRIOR) / np.sqrt(len(z) + _PRIOR))


def lacking(z: Array, share: Array) -> float:
    """The factor of the draws' deviation that explains the errors; rows of much seed noise say
    little about it."""
    excess = (share * (np.minimum(z, 4.0) ** 2 - 1.0)).sum() / ((share * share).sum() + _FEW)
    return float(np.sqrt(max(1.0 + excess, 0.0)))


def _folds(
    samples: Samples, seed: int, folds: int = 5
) -> Iterator[tuple[Samples, Samples, np.ndarray]]:
    """Training rows, held-out last rows and which of them are asked; a point stays together.

    Asked are Sobol points where there are enough: shares and curves speak of the whole space, and
    a search that crowds around its best would vouch for that corner alone.
    """
    points = np.random.default_rng(seed).permutation(np.unique(samples.point))
    fold_of = np.zeros(int(points.max()) + 1, dtype=np.int64)
    fold_of[points] = np.arange(len(points)) % folds
    fold = fold_of[samples.point]
    asked = samples.last & samples.blind
    if len(np.unique(samples.point[asked])) < 12:
        asked = samples.last
    for k in range(folds):
        held = (fold == k) & samples.last
        if asked[held].any() and (fold != k).sum() >= 4:
            yield samples.rows(fold != k), samples.rows(held), asked[held]


def _by_epoch(train: Samples, epochs: Array) -> Array:
    """What the epoch alone predicts: a line in log(epoch) through the last (blind) rows."""
    blind = train.last & train.blind
    rows = train.rows(blind if blind.sum() >= 8 else train.last)
    x = np.log(rows.epochs)
    if float(np.ptp(x)) < 1e-9:
        return np.full(len(epochs), float(rows.scores.mean()))
    slope, level = np.polyfit(x, rows.scores, 1)
    return np.asarray(level + slope * np.log(epochs))
