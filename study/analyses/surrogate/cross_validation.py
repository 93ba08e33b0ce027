"""Cross-validation: how well a surrogate predicts unseen settings, and how wide its bands must be.

Five folds over points. Held-out errors show where the draws of a model are too narrow, and the
draws are widened accordingly, in bins of the predicted score (as in Mondrian conformal prediction):
a model that is calibrated on average is often overconfident about the few best settings, which
matter most. An error has a part from the response and a part from the seed, and only the first is
widened: the factor k solves error^2 = k^2 response^2 + seed^2, or seed noise would hide how much
the draws are too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.stats import norm

from study.analyses.surrogate import discontinuity, forest, gp
from study.analyses.surrogate.hyperparameters import GPHyperparameters
from study.analyses.surrogate.observations import FloatArray, LossObservations
from study.analyses.surrogate.score_transform import ScoreTransform

SurrogateKind = Literal["gp", "log_gp", "forest"]

_CALIBRATION_BIN_QUANTILES = (0.25, 0.75)
_DISPERSION_PRIOR_ROWS = 4.0
_CALIBRATION_PRIOR_ROWS = 2.0
"""Prior weight, in rows, of the assumption that the draws of a bin are calibrated."""
_MAX_CALIBRATION_FACTOR = 3.0


@dataclass(frozen=True)
class CrossValidationResult:
    """How well a model predicts unseen points (Sobol points, if there are enough).

    Args:
        kind: Model.
        r2: Share of the held-out variance explained beyond what the epoch alone explains.
        coverage: Share of held-out scores inside the model's 90 % interval.
        log_density: Mean log density of the held-out scores after calibration; higher is better.
        dispersion: Root mean square of held-out errors in units of the model's own deviation: 1 for
            a calibrated model.
        rmse: Root mean square of the held-out errors.
        calibration_curve: Pairs of a predicted score and the factor by which draws are widened
            there.
    """

    kind: SurrogateKind
    r2: float
    coverage: float
    log_density: float
    dispersion: float = 1.0
    rmse: float = float("nan")
    calibration_curve: tuple[tuple[float, float], ...] = ()

    def interpolate_calibration(self, scores: FloatArray) -> FloatArray:
        """Return the factors by which draws are widened at these predicted scores."""
        if not self.calibration_curve:
            return np.ones_like(scores)
        at, factors = np.array(self.calibration_curve).T
        return np.asarray(np.interp(scores, at, factors))


@dataclass(frozen=True)
class _HeldOutRows:
    """Held-out rows: scores, predictions, errors and densities.

    Args:
        z: Errors in units of the predicted deviation of a new trial.
        draw_errors: Errors in units of the deviation whose variance `draw_variance_share` divides.
        draw_variance_share: Share of that variance that comes from the draws; the rest is the
            seed's.
        epoch_baseline: Score predicted from the epoch alone.
        is_scored: Whether the row counts in the summary (see `_iter_folds`).
    """

    scores: FloatArray
    mean: FloatArray
    z: FloatArray
    draw_errors: FloatArray
    draw_variance_share: FloatArray
    log_density: FloatArray
    epoch_baseline: FloatArray
    is_scored: np.ndarray


HeldOutPrediction = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]
"""`mean`, `z`, `draw_errors`, `draw_variance_share`, `log_density` (see `_HeldOutRows`)."""


def cross_validate_gp(
    observations: LossObservations,
    kind: SurrogateKind,
    transform: ScoreTransform,
    hyperparameters: GPHyperparameters,
    seed: int,
) -> CrossValidationResult:
    """Cross-validate a Gaussian process with this kernel and this score transform."""

    def predict(train: LossObservations, test: LossObservations) -> HeldOutPrediction:
        # Rounding moves the start away from the fit on all rows, which includes held-out rows.
        start = replace(hyperparameters, theta=np.round(hyperparameters.theta))
        refitted = gp.refit_gp(train, transform, start, seed=seed, max_rows=130, steps=12)
        draws = discontinuity.sample_locations(train, transform, refitted, count=5, seed=seed)
        posteriors = [gp.GPPosterior(train, draw, transform) for draw in draws]
        m, s = gp.predict_mixture(posteriors, test.units, test.epochs)
        latent = transform.to_latent(test.scores)
        density = norm.logpdf(latent, m, s) + np.log(transform.latent_slope(test.scores))
        z = np.abs(latent - m) / s
        seed_variance = float(np.mean([d.trial_variance + d.noise_variance for d in draws]))
        share = np.clip(1.0 - seed_variance / (s * s), 0.0, 1.0)
        return transform.score_moments(m, s)[0], z, z, share, density

    return _summarise_held_out(kind, _predict_held_out(observations, predict, seed))


def cross_validate_forest(observations: LossObservations, seed: int) -> CrossValidationResult:
    """Cross-validate a forest whose trees serve as draws."""

    def predict(train: LossObservations, test: LossObservations) -> HeldOutPrediction:
        model = forest.fit_forest(train, seed=seed, trees=60)
        m, s, trees = model.predict(test.units, test.epochs)
        s = np.maximum(s, 1e-9)
        gap = np.abs(test.scores - m)
        own = gap / np.maximum(trees, 1e-9)
        return m, gap / s, own, np.ones_like(own), norm.logpdf(test.scores, m, s)

    return _summarise_held_out("forest", _predict_held_out(observations, predict, seed))


def _predict_held_out(
    observations: LossObservations,
    predict: Callable[[LossObservations, LossObservations], HeldOutPrediction],
    seed: int,
) -> _HeldOutRows:
    parts = []
    for train, test, scored in _iter_folds(observations, seed):
        predicted = predict(train, test)
        parts.append((test.scores, *predicted, _predict_from_epoch(train, test.epochs), scored))
    return _HeldOutRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _summarise_held_out(kind: SurrogateKind, held: _HeldOutRows) -> CrossValidationResult:
    scored = held.is_scored
    y, mean, base = held.scores[scored], held.mean[scored], held.epoch_baseline[scored]
    left = float(((y - mean) ** 2).sum())
    r2 = 1.0 - left / max(float(((y - base) ** 2).sum()), 1e-300)
    return CrossValidationResult(
        kind,
        r2,
        coverage=float((held.z[scored] <= float(norm.ppf(0.95))).mean()),
        log_density=float(_calibrate_log_density(held.log_density[scored], held.z[scored]).mean()),
        dispersion=_estimate_dispersion(held.draw_errors[scored]),
        rmse=float(np.sqrt(left / len(y))),
        calibration_curve=_fit_calibration_curve(held),
    )


def _calibrate_log_density(density: FloatArray, z: FloatArray) -> FloatArray:
    """Return log densities of a model whose deviation is widened to match its errors."""
    scale = max(_estimate_dispersion(z), 1.0)
    return np.asarray(density + 0.5 * z * z * (1.0 - scale**-2) - np.log(scale))


def _fit_calibration_curve(held: _HeldOutRows) -> tuple[tuple[float, float], ...]:
    """Return the factor in three bins of the predicted score: worst, middle and best."""
    edges = np.quantile(held.mean[held.is_scored], _CALIBRATION_BIN_QUANTILES)
    place = np.digitize(held.mean, edges)
    out = []
    for k in range(len(_CALIBRATION_BIN_QUANTILES) + 1):
        inside = place == k
        if inside.any():
            # Bands are never narrowed: a bin has too few rows to justify that.
            factor = float(
                np.clip(
                    estimate_calibration_factor(
                        held.draw_errors[inside], held.draw_variance_share[inside]
                    ),
                    1.0,
                    _MAX_CALIBRATION_FACTOR,
                )
            )
            out.append((float(np.median(held.mean[inside])), factor))
    return tuple(sorted(out))


def _estimate_dispersion(z: FloatArray) -> float:
    """Return the root mean square of standardised errors, shrunk to 1, with outliers clipped."""
    return float(
        np.sqrt((np.minimum(z, 4.0) ** 2).sum() + _DISPERSION_PRIOR_ROWS)
        / np.sqrt(len(z) + _DISPERSION_PRIOR_ROWS)
    )


def estimate_calibration_factor(z: FloatArray, share: FloatArray) -> float:
    """Return the factor on the draws' deviation that explains the errors.

    Rows that consist mostly of seed noise carry little weight.
    """
    excess = (share * (np.minimum(z, 4.0) ** 2 - 1.0)).sum() / (
        (share * share).sum() + _CALIBRATION_PRIOR_ROWS
    )
    return float(np.sqrt(max(1.0 + excess, 0.0)))


def _iter_folds(
    observations: LossObservations, seed: int, folds: int = 5
) -> Iterator[tuple[LossObservations, LossObservations, np.ndarray]]:
    """Yield training rows, held-out last rows, and which of them are scored, by point.

    Sobol points are scored if there are enough: importances and curves describe the complete space,
    and the points of a search, which cluster around its best, would measure that corner only.
    """
    points = np.random.default_rng(seed).permutation(np.unique(observations.point))
    fold_of = np.zeros(int(points.max()) + 1, dtype=np.int64)
    fold_of[points] = np.arange(len(points)) % folds
    fold = fold_of[observations.point]
    scored = observations.last & observations.blind
    if len(np.unique(observations.point[scored])) < 12:
        scored = observations.last
    for k in range(folds):
        held = (fold == k) & observations.last
        if scored[held].any() and (fold != k).sum() >= 4:
            yield observations.select_rows(fold != k), observations.select_rows(held), scored[held]


def _predict_from_epoch(train: LossObservations, epochs: FloatArray) -> FloatArray:
    """Predict from the epoch alone: a line in log(epoch) through the last (Sobol) rows."""
    blind = train.last & train.blind
    rows = train.select_rows(blind if blind.sum() >= 8 else train.last)
    x = np.log(rows.epochs)
    if float(np.ptp(x)) < 1e-9:
        return np.full(len(epochs), float(rows.scores.mean()))
    slope, level = np.polyfit(x, rows.scores, 1)
    return np.asarray(level + slope * np.log(epochs))
