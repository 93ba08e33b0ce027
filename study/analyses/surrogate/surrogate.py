"""Surrogate model of a loss: fitting, model selection, and refusing questions it cannot answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.stats import f as f_distribution
from scipy.stats import qmc

from search_spaces.space import ParamValue
from search_spaces.unit_scale import from_unit
from study.analyses.surrogate import discontinuity, forest, gp
from study.analyses.surrogate.cross_validation import (
    CrossValidationResult,
    SurrogateKind,
    cross_validate_forest,
    cross_validate_gp,
)
from study.analyses.surrogate.divergence_model import DivergenceModel, fit_divergence_model
from study.analyses.surrogate.hyperparameters import GPHyperparameters, sample_hyperparameters
from study.analyses.surrogate.observations import FloatArray, LossObservations, snap_to_levels
from study.analyses.surrogate.score_transform import ScoreTransform, estimate_ceiling
from study.analyses.surrogate.seed_noise import SeedNoise
from study.utils.threads import single_threaded

SURROGATE_NAMES: dict[SurrogateKind, str] = {
    "gp": "Gaussian process",
    "log_gp": "Gaussian process of the log shortfall",
    "forest": "forest",
}

MIN_R2 = 0.5
"""Minimum share of explained held-out variance for reporting importances."""

BOOTSTRAP_POINT_SHARE = 0.85
"""Share of the points in each random subset that a process is conditioned on."""


@dataclass(frozen=True)
class SurrogateModel:
    """A model of the full-length score, as functions drawn from its posterior.

    Where trials diverged, the score is the expected score if a diverged trial counts as the worst
    score observed: a mixture of the score of successful trials and the worst score.

    Args:
        observations: The rows it was fitted to, including diverged trials.
        kind: The model selected by cross-validation.
        cv_results: Cross-validation of all models, the selected one first.
        noise_sd: Standard deviation of repeated trials at one point, by the model.
        divergence_model: Probability of divergence; None if it was not modelled.
    """

    observations: LossObservations
    kind: SurrogateKind
    cv_results: tuple[CrossValidationResult, ...]
    noise_sd: float
    divergence_model: DivergenceModel | None = field(default=None, repr=False)
    _paths: tuple[gp.SamplePaths, ...] = field(default=(), repr=False)
    _forests: tuple[forest.ForestModel, ...] = field(default=(), repr=False)

    def draw_scores(self, units: FloatArray, *, chunk: int = 4096) -> FloatArray:
        """Return draws x points: plausible scores of full-length trials at these positions."""
        units = snap_to_levels(self.observations.distributions, np.atleast_2d(units))
        parts = [self._draw_chunk(units[i : i + chunk]) for i in range(0, len(units), chunk)]
        return np.concatenate(parts, axis=1)

    def _draw_chunk(self, units: FloatArray) -> FloatArray:
        if self._paths:
            values = np.concatenate([path(units) for path in self._paths])
        else:
            epochs = np.full(len(units), self.observations.full_epochs)
            values = np.concatenate(
                [trees.predict_per_tree(units, epochs) for trees in self._forests]
            )
        if self.kind == "log_gp":
            # Back-transformed logarithms are unbounded below where there are no trials.
            seen = self.observations.scores
            values = np.maximum(values, float(seen.min()) - 0.25 * float(np.ptp(seen)))
        middle = values.mean(axis=0)
        values = middle + self.selected_cv_result.interpolate_calibration(middle) * (
            values - middle
        )
        if self.divergence_model is None:
            return np.asarray(values)
        chance = self.divergence_model(units)
        chance = chance[np.arange(len(values)) % len(chance)]
        worst = float(self.observations.scores.min())
        return np.asarray(values * (1 - chance) + worst * chance)

    def predict_mean(self, units: FloatArray) -> FloatArray:
        """Return the mean over the draws at these positions."""
        return np.asarray(self.draw_scores(units).mean(axis=0))

    @property
    def has_jumps(self) -> bool:
        """Whether draws have steps, which interpolation must not smooth."""
        return (
            not self._paths or self.jump_location is not None or self.divergence_model is not None
        )

    @property
    def jump_location(self) -> tuple[str, ParamValue, ParamValue] | None:
        """The hyperparameter along which the score jumps, and the values between which it does.

        None without a jump.
        """
        jumps = [p.posterior.hyperparameters.jump for p in self._paths]
        positions = [jump.position for jump in jumps if jump is not None]
        if not positions or jumps[0] is None:
            return None
        param = jumps[0].param
        distribution = self.observations.distributions[param]
        low, high = (from_unit(distribution, u) for u in (min(positions), max(positions)))
        return self.observations.params[param], low, high

    @cached_property
    def good_settings(self) -> FloatArray:
        """Settings about as good as the best; cached, because most analyses use them."""
        return find_good_settings(self.observations, self.predict_mean, self.noise_sd)

    @property
    def selected_cv_result(self) -> CrossValidationResult:
        """Cross-validation result of the selected model."""
        return self.cv_results[0]


@dataclass(frozen=True)
class Refusal:
    """A sentence explaining why a question is not answered."""

    reason: str


def find_good_settings(
    observations: LossObservations, mean: Callable[[FloatArray], FloatArray], noise: float
) -> FloatArray:
    """Return 32 settings whose modelled score cannot be distinguished from the best one.

    Candidates are 1,024 Sobol points and all tried points. Those within one seed's noise of the
    best (at least 32) are thinned evenly by rank; on a ridge they lie all along it.
    """
    wide = qmc.Sobol(len(observations.params), seed=0).random(1024)
    tried = np.unique(observations.units[~observations.diverged], axis=0)
    candidates = np.concatenate([snap_to_levels(observations.distributions, wide), tried])
    scores = mean(candidates)
    order = np.argsort(-scores, kind="stable")
    n_good = max(int((scores >= scores.max() - noise).sum()), 32)
    return np.asarray(candidates[order[np.linspace(0, n_good - 1, 32).astype(int)]])


def min_trials_to_fit(params: int) -> int:
    """Return the minimum number of scored points to which a model is fitted."""
    return max(12, 3 * params)


@single_threaded
def fit_surrogate(
    observations: LossObservations,
    *,
    seed: int = 0,
    kind: SurrogateKind | None = None,
    n_bootstrap: int = 8,
    n_draws: int = 128,
) -> SurrogateModel | Refusal:
    """Fit all models and keep the best one by cross-validation (or `kind`).

    The Gaussian process is conditioned on `n_bootstrap` random subsets of the points, and functions
    are drawn from each posterior. For the forest, the functions are trees grown on bootstraps of
    the points.
    """
    scored = observations.select_rows(~observations.diverged)
    params = len(scored.params)
    if params == 0:
        return Refusal("No hyperparameter was searched.")
    if not len(scored):
        return Refusal(
            "Every trial diverged." if len(observations) else "No trial has a score yet."
        )
    needed = min_trials_to_fit(params)
    points = len(np.unique(scored.point[scored.last]))
    if points < needed:
        return Refusal(
            f"{points} different settings have a score; "
            f"{needed} are needed to model {params} hyperparameters."
        )
    if float(np.ptp(scored.scores)) < 1e-12:
        return Refusal("All trials have the same score: there is nothing to explain.")
    ceiling = estimate_ceiling(scored.scores)
    transforms: dict[SurrogateKind, ScoreTransform] = {
        "gp": ScoreTransform.from_scores(scored.scores)
    }
    if ceiling is not None:
        transforms["log_gp"] = ScoreTransform.from_scores(scored.scores, ceiling=ceiling)
    fits: dict[SurrogateKind, GPHyperparameters] = {}
    for k, transform in transforms.items():
        fits[k] = gp.fit_gp(scored, transform, seed=seed, other_fit=fits.get("gp"))
    results = [cross_validate_gp(scored, k, transforms[k], fits[k], seed) for k in transforms]
    results.append(cross_validate_forest(scored, seed))
    results.sort(key=lambda r: (r.kind != kind if kind else False, -r.log_density))
    divergence_model = fit_divergence_model(observations, seed=seed)
    chosen = results[0].kind
    noise_kind: SurrogateKind = chosen if chosen in fits else "gp"
    noise = gp.GPPosterior(scored, fits[noise_kind], transforms[noise_kind]).noise_sd
    if chosen in fits:
        paths = _draw_gp_paths(scored, transforms[chosen], fits[chosen], seed, n_bootstrap, n_draws)
        return SurrogateModel(
            observations, chosen, tuple(results), noise, divergence_model, _paths=paths
        )
    rng = np.random.default_rng(seed)
    forests = tuple(
        forest.fit_forest(
            forest.bootstrap_points(scored, rng), seed=seed + 1 + b, trees=max(n_draws // 32, 1)
        )
        for b in range(32)
    )
    return SurrogateModel(
        observations, "forest", tuple(results), noise, divergence_model, _forests=forests
    )


def refuse_importance(surrogate: SurrogateModel) -> Refusal | None:
    """Refuse importances (shares of explained variance) if the model explains too little."""
    r2 = surrogate.selected_cv_result.r2
    if r2 >= MIN_R2:
        return None
    return Refusal(
        f"The model explains {max(r2, 0.0):.0%} of the score variance at unseen settings; "
        f"importances need {MIN_R2:.0%}."
    )


def refuse_response(surrogate: SurrogateModel, noise: SeedNoise) -> Refusal | None:
    """Refuse response curves unless the model is good or leaves only seed noise unexplained.

    The second condition is an F-test of the held-out errors against the repeats, at 10 %. With few
    repeats the test would pass almost anything, so unreliable noise estimates are not used.
    """
    r2 = surrogate.selected_cv_result.r2
    if r2 >= MIN_R2:
        return None
    if noise.is_reliable:
        points = len(np.unique(surrogate.observations.point))
        limit = float(f_distribution.ppf(0.9, points, noise.degrees_of_freedom))
        if surrogate.selected_cv_result.rmse**2 <= limit * noise.sigma**2:
            return None
    return Refusal(
        f"The model explains {max(r2, 0.0):.0%} of the score variance at unseen settings, and the "
        "rest may be more than seed noise: its curves would mislead."
    )


def _draw_gp_paths(
    observations: LossObservations,
    transform: ScoreTransform,
    hyperparameters: GPHyperparameters,
    seed: int,
    n_bootstrap: int,
    n_draws: int,
) -> tuple[gp.SamplePaths, ...]:
    rng = np.random.default_rng(seed)
    points = np.unique(observations.point)
    n_jumps = 1 if hyperparameters.jump is None else 2
    share = max(n_draws // max(n_bootstrap * n_jumps, 1), 1)
    paths = []
    hyperparameter_draws = sample_hyperparameters(
        observations, transform, hyperparameters, count=n_bootstrap, seed=seed
    )
    for b, draw in enumerate(hyperparameter_draws):
        # Without replacement: a duplicated row would look like a repeated trial.
        subset_points = rng.choice(
            points, size=max(round(BOOTSTRAP_POINT_SHARE * len(points)), 3), replace=False
        )
        subset = observations.select_rows(np.isin(observations.point, subset_points))
        for k, draw_with_jump in enumerate(
            discontinuity.sample_locations(subset, transform, draw, count=n_jumps, seed=seed + b)
        ):
            posterior = gp.GPPosterior(subset, draw_with_jump, transform)
            paths.append(posterior.draw_sample_paths(share, seed=seed + 1000 + n_jumps * b + k))
    return tuple(paths)
