"""Findings: the results of all analyses of a study, computed once for report, CLI and tracking.

`study.analyses.ANALYSES` says which question each field answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from study.analyses import (
    diagnostics,
    divergence,
    early_stopping,
    epoch_selection_bias,
    expected_best,
    importance,
    interactions,
    leaderboard,
    loss_comparison,
    next_trials,
    optimization_history,
    response_curves,
    stable_ranges,
    sweeps,
    tunability,
)
from study.analyses.claims import judge, settling_trials
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.seed_noise import SeedNoise, estimate_seed_noise
from study.analyses.surrogate.surrogate import (
    Refusal,
    SurrogateModel,
    fit_surrogate,
    refuse_importance,
    refuse_response,
)
from study.trials.table import TrialTable
from study.utils.parallel import parallel_map
from study.utils.threads import single_threaded

FrameOrRefusal = pd.DataFrame | Refusal

MIN_TRIALS_FOR_HELPERS = 300
"""With fewer trials, starting helper processes takes longer than they save."""


@dataclass(frozen=True)
class ScoreTolerance:
    """The score difference that counts as negligible, and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class TunabilityFindings:
    """What tuning changes compared with the published point (see `study.analyses.tunability`)."""

    gain: tuple[float, float, float]
    tunability: pd.DataFrame
    leave: pd.DataFrame
    path: pd.DataFrame


@dataclass(frozen=True)
class LossFindings:
    """Findings about one loss, with a `Refusal` for what the trials cannot answer."""

    loss: str
    seed_noise: SeedNoise
    tolerance: ScoreTolerance
    surrogate: SurrogateModel | Refusal
    importance: FrameOrRefusal
    good_importance: FrameOrRefusal
    interactions: FrameOrRefusal
    response_curves: FrameOrRefusal
    stable_ranges: FrameOrRefusal
    tuning: TunabilityFindings | Refusal
    surfaces: tuple[pd.DataFrame, ...]
    sweeps: pd.DataFrame
    sweep_predictions: Mapping[tuple[str, str], pd.DataFrame]
    divergence: pd.DataFrame
    collapsed_trials: pd.DataFrame
    expected_best: pd.DataFrame
    early_stopping: pd.DataFrame
    candidate_pool: next_trials.CandidatePool | None = field(repr=False)

    @property
    def loss_model(self) -> LossModel:
        """The part that claims and suggested trials need."""
        refusal = self.response_curves if isinstance(self.response_curves, Refusal) else None
        return LossModel(self.surrogate, refusal, self.tolerance.value)


@dataclass(frozen=True)
class StudyFindings:
    """Findings about a study."""

    table: TrialTable
    leaderboard: pd.DataFrame
    optimization_history: pd.DataFrame
    confirmed_scores: pd.DataFrame
    epoch_selection_bias: pd.DataFrame
    pairwise_tests: pd.DataFrame
    best_probabilities: pd.DataFrame
    best_split: str
    noise_floor: pd.DataFrame
    epoch_cost: pd.DataFrame
    claims: pd.DataFrame
    suggested_trials: pd.DataFrame
    diagnostics: pd.DataFrame
    losses: Mapping[str, LossFindings]

    @property
    def loss_models(self) -> dict[str, LossModel]:
        """Model of every loss."""
        return {loss: findings.loss_model for loss, findings in self.losses.items()}


@single_threaded
def analyse_study(table: TrialTable, *, seed: int = 0, n_suggestions: int = 16) -> StudyFindings:
    """Run every analysis. Deterministic for a table and a seed, on any number of cores.

    Args:
        table: Trials of the study.
        seed: Seed of all random draws.
        n_suggestions: Number of trials to suggest.
    """
    helpers = None if len(table.trials) >= MIN_TRIALS_FOR_HELPERS else 0
    names = list(table.spaces)
    results = parallel_map(partial(analyse_loss, table, seed=seed), names, helpers=helpers)
    losses = dict(zip(names, results, strict=True))
    models = {loss: findings.loss_model for loss, findings in losses.items()}
    surrogates = {loss: findings.surrogate for loss, findings in losses.items()}
    pools = {loss: findings.candidate_pool for loss, findings in losses.items()}
    draws, split = loss_comparison.draw_tuned_scores(table, surrogates, seed=seed)
    warnings = pd.concat([diagnostics.check_table_spaces(table), diagnostics.check_results(table)])
    return StudyFindings(
        table=table,
        leaderboard=leaderboard.analyse_leaderboard(table),
        optimization_history=optimization_history.analyse_optimization_history(table),
        confirmed_scores=loss_comparison.summarise_confirmed_scores(table),
        epoch_selection_bias=epoch_selection_bias.analyse_epoch_selection_bias(table),
        pairwise_tests=loss_comparison.compare_losses_pairwise(table),
        best_probabilities=loss_comparison.estimate_probability_best(
            loss_comparison.pool_equivalent_draws(
                draws, loss_comparison.find_equivalent_groups(table)
            )
        ),
        best_split=split,
        noise_floor=loss_comparison.measure_noise_floor(table),
        epoch_cost=loss_comparison.summarise_epoch_cost(table),
        claims=settling_trials.add_trial_counts(
            table, models, judge.analyse_claims(table, models, seed=seed)
        ),
        suggested_trials=next_trials.suggest_trials(
            table, models, n=n_suggestions, seed=seed, pools=pools
        ),
        diagnostics=warnings.reset_index(drop=True),
        losses=losses,
    )


def choose_tolerance(
    table: TrialTable, loss: str, surrogate: SurrogateModel | Refusal
) -> ScoreTolerance:
    """Return the tolerance of the study file, or else the seed noise.

    The noise is that of the loss, of all losses pooled, or of the model, in this order.
    """
    stated = table.protocol.get("tolerance")
    if stated:
        return ScoreTolerance(float(stated), "set in the study file")
    own, pooled = estimate_seed_noise(table, loss), estimate_seed_noise(table)
    if own.is_reliable:
        return ScoreTolerance(own.sigma, "one seed sigma of this loss")
    if pooled.is_measured:
        return ScoreTolerance(pooled.sigma, "one seed sigma, all losses pooled")
    if isinstance(surrogate, SurrogateModel):
        return ScoreTolerance(surrogate.noise_sd, "noise of the model (no seed was repeated)")
    return ScoreTolerance(float("nan"), "unknown: no seed was repeated")


@single_threaded
def analyse_loss(table: TrialTable, loss: str, *, seed: int = 0) -> LossFindings:
    """Return all findings about one loss."""
    observations = collect_observations(table, loss)
    model = fit_surrogate(observations, seed=seed)
    noise = estimate_seed_noise(table, loss)
    tolerance = choose_tolerance(table, loss, model)
    divergence_model = model.divergence_model if isinstance(model, SurrogateModel) else None
    collapsed_trials = divergence.find_collapsed_trials(table, loss)
    has_failures = bool(observations.diverged.any()) or len(collapsed_trials) > 0
    params, good_params, pairs = _analyse_importance(model, seed)
    curves, ranges, tuning = _analyse_response(table, model, noise, tolerance.value, seed)
    return LossFindings(
        loss=loss,
        seed_noise=noise,
        tolerance=tolerance,
        surrogate=model,
        importance=params,
        good_importance=good_params,
        interactions=pairs,
        response_curves=curves,
        stable_ranges=ranges,
        tuning=tuning,
        surfaces=_analyse_surfaces(model, curves, pairs),
        sweeps=sweeps.analyse_sweeps(table, loss),
        sweep_predictions=_predict_sweeps(table, model, loss),
        divergence=divergence.analyse_divergence(observations, divergence_model, collapsed_trials)
        if has_failures
        else pd.DataFrame(),
        collapsed_trials=collapsed_trials,
        expected_best=expected_best.analyse_expected_best(table, loss),
        early_stopping=early_stopping.analyse_early_stopping(table, loss, seed=seed),
        candidate_pool=next_trials.prepare_candidate_pool(loss, model, tolerance.value, seed=seed),
    )


def _analyse_importance(
    model: SurrogateModel | Refusal, seed: int
) -> tuple[FrameOrRefusal, FrameOrRefusal, FrameOrRefusal]:
    refusal = model if isinstance(model, Refusal) else refuse_importance(model)
    if refusal is not None or isinstance(model, Refusal):
        assert refusal is not None
        return refusal, refusal, refusal
    return importance.analyse_importance(model, seed=seed)


def _analyse_response(
    table: TrialTable,
    model: SurrogateModel | Refusal,
    noise: SeedNoise,
    tolerance: float,
    seed: int,
) -> tuple[FrameOrRefusal, FrameOrRefusal, TunabilityFindings | Refusal]:
    noise = noise if noise.is_reliable else estimate_seed_noise(table)
    refusal = model if isinstance(model, Refusal) else refuse_response(model, noise)
    if refusal is not None or isinstance(model, Refusal):
        assert refusal is not None
        return refusal, refusal, refusal
    curves = response_curves.analyse_response_curves(model, tolerance=tolerance)
    ranges = stable_ranges.analyse_stable_ranges(curves, model, tolerance=tolerance)
    endpoints = tunability.find_tuning_endpoints(table, model)
    if endpoints is None:
        return curves, ranges, Refusal("The search space has no published point to start from.")
    tuning = TunabilityFindings(
        gain=tunability.estimate_tuning_gain(model, endpoints),
        tunability=tunability.analyse_tunability(model, endpoints),
        leave=tunability.assess_keeping_published(model, endpoints, tolerance=tolerance, seed=seed),
        path=tunability.compute_ablation_path(model, endpoints),
    )
    return curves, ranges, tuning


def _analyse_surfaces(
    model: SurrogateModel | Refusal, curves: FrameOrRefusal, pairs: FrameOrRefusal
) -> tuple[pd.DataFrame, ...]:
    if isinstance(model, Refusal) or isinstance(curves, Refusal):
        return ()
    shares = pairs if isinstance(pairs, pd.DataFrame) else None
    return tuple(
        interactions.analyse_interaction(model, pair)
        for pair in interactions.choose_pairs(model, shares)
    )


def _predict_sweeps(
    table: TrialTable, model: SurrogateModel | Refusal, loss: str
) -> dict[tuple[str, str], pd.DataFrame]:
    if isinstance(model, Refusal):
        return {}
    return {
        (sweep.param, sweep.anchor): sweeps.predict_sweep(model, sweep)
        for sweep in sweeps.collect_sweeps(table, loss)
    }
