"""Everything a study's trials say, computed once, for whatever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from study.analyses import (
    advice,
    claims,
    comparison,
    divergence,
    expected_best,
    history,
    importance,
    inflation,
    leaderboard,
    lint,
    pairs,
    response,
    settle,
    stable,
    stopping,
    sweeps,
    tuning,
)
from study.analyses.loss_model import LossModel
from study.analyses.noise import SeedNoise, seed_noise
from study.analyses.samples import gather
from study.analyses.surrogate import (
    Refusal,
    Surrogate,
    fit,
    refuse_importance,
    refuse_response,
)
from study.table import TrialTable
from study.threads import one_thread
from study.workers import each

Frame = pd.DataFrame | Refusal

WORTH_HELP = 300
"""With fewer trials a helper takes longer to start than it saves."""


@dataclass(frozen=True)
class Tolerance:
    """What difference of scores is too small to care about, and who said so."""

    value: float
    source: str


@dataclass(frozen=True)
class Tuned:
    """What tuning does to the published point (see `study.analyses.tuning`)."""

    gain: tuple[float, float, float]
    tunability: pd.DataFrame
    leave: pd.DataFrame
    path: pd.DataFrame


@dataclass(frozen=True)
class LossFindings:
    """What the trials of one loss say; a Refusal stands where they do not say."""

    loss: str
    noise: SeedNoise
    tolerance: Tolerance
    surrogate: Surrogate | Refusal
    importance: Frame
    good_importance: Frame
    pairs: Frame
    curves: Frame
    stable: Frame
    tuned: Tuned | Refusal
    surfaces: tuple[pd.DataFrame, ...]
    sweeps: pd.DataFrame
    sweep_models: Mapping[tuple[str, str], pd.DataFrame]
    divergence: pd.DataFrame
    collapsed: pd.DataFrame
    expected: pd.DataFrame
    stopping: pd.DataFrame
    pool: advice.Pool | None = field(repr=False)

    @property
    def model(self) -> LossModel:
        """What the claims and the advice need."""
        no_curves = self.curves if isinstance(self.curves, Refusal) else None
        return LossModel(self.surrogate, no_curves, self.tolerance.value)


@dataclass(frozen=True)
class Findings:
    """What a study says."""

    table: TrialTable
    leaderboard: pd.DataFrame
    history: pd.DataFrame
    confirmed: pd.DataFrame
    inflation: pd.DataFrame
    paired: pd.DataFrame
    best: pd.DataFrame
    best_split: str
    noise_floor: pd.DataFrame
    cost: pd.DataFrame
    claims: pd.DataFrame
    advice: pd.DataFrame
    lint: pd.DataFrame
    losses: Mapping[str, LossFindings]

    @property
    def models(self) -> dict[str, LossModel]:
        """Every loss's model."""
        return {loss: found.model for loss, found in self.losses.items()}


@one_thread
def find(table: TrialTable, *, seed: int = 0, advised: int = 16) -> Findings:
    """Run every analysis; the same table and seed give the same findings, on however many cores."""
    helpers = None if len(table.trials) >= WORTH_HELP else 0
    names = list(table.spaces)
    found = each(partial(find_loss, table, seed=seed), names, helpers=helpers)
    losses = dict(zip(names, found, strict=True))
    models = {loss: found.model for loss, found in losses.items()}
    surrogates = {loss: one.surrogate for loss, one in losses.items()}
    pools = {loss: one.pool for loss, one in losses.items()}
    draws, split = comparison.best_draws(table, surrogates, seed=seed)
    warnings = pd.concat([lint.lint_table(table), lint.lint_results(table)])
    return Findings(
        table=table,
        leaderboard=leaderboard.analyse(table),
        history=history.analyse(table),
        confirmed=comparison.confirmed(table),
        inflation=inflation.analyse(table),
        paired=comparison.paired(table),
        best=comparison.probability_best(comparison.pooled(draws, comparison.one_function(table))),
        best_split=split,
        noise_floor=comparison.noise_floor(table),
        cost=comparison.cost(table),
        claims=settle.priced(table, models, claims.analyse(table, models, seed=seed)),
        advice=advice.advise(table, models, n=advised, seed=seed, pools=pools),
        lint=warnings.reset_index(drop=True),
        losses=losses,
    )


def tolerance_of(table: TrialTable, loss: str, surrogate: Surrogate | Refusal) -> Tolerance:
    """The user's tolerance; else one seed sigma of the loss, of all losses, or of the model."""
    stated = table.protocol.get("tolerance")
    if stated:
        return Tolerance(float(stated), "set in the study file")
    own, pooled = seed_noise(table, loss), seed_noise(table)
    if own.reliable:
        return Tolerance(own.sigma, "one seed sigma of this loss")
    if pooled.measured:
        return Tolerance(pooled.sigma, "one seed sigma, all losses pooled")
    if isinstance(surrogate, Surrogate):
        return Tolerance(surrogate.noise, "the model's noise (no seed was repeated)")
    return Tolerance(float("nan"), "unknown: no seed was repeated")


@one_thread
def find_loss(table: TrialTable, loss: str, *, seed: int = 0) -> LossFindings:
    """All findings about one loss."""
    samples = gather(table, loss)
    model = fit(samples, seed=seed)
    noise = seed_noise(table, loss)
    tolerance = tolerance_of(table, loss, model)
    risk = model.risk if isinstance(model, Surrogate) else None
    fallen = divergence.collapsed(table, loss)
    fails = bool(samples.diverged.any()) or len(fallen) > 0
    shares = _shares(model, seed)
    curves, ranges, tuned = _curves(table, model, noise, tolerance.value, seed)
    return LossFindings(
        loss=loss,
        noise=noise,
        tolerance=tolerance,
        surrogate=model,
        importance=shares[0],
        good_importance=shares[1],
        pairs=shares[2],
        curves=curves,
        stable=ranges,
        tuned=tuned,
        surfaces=_surfaces(model, curves, shares[2]),
        sweeps=sweeps.analyse(table, loss),
        sweep_models=_sweep_models(table, model, loss),
        divergence=divergence.analyse(samples, risk, fallen) if fails else pd.DataFrame(),
        collapsed=fallen,
        expected=expected_best.analyse(table, loss),
        stopping=stopping.analyse(table, loss, seed=seed),
        pool=advice.prepare(loss, model, tolerance.value, seed=seed),
    )


def _shares(model: Surrogate | Refusal, seed: int) -> tuple[Frame, Frame, Frame]:
    refused = model if isinstance(model, Refusal) else refuse_importance(model)
    if refused is not None or isinstance(model, Refusal):
        assert refused is not None
        return refused, refused, refused
    values = importance.design_values(model, seed=seed)
    shares = importance.of_values(values)
    floor = float(np.median(model.samples.scores[model.samples.last]))
    good = importance.of_values(values, floor=floor)
    return (
        importance.of_knobs(model, shares),
        importance.of_knobs(model, good),
        importance.of_pairs(model, shares),
    )


def _curves(
    table: TrialTable,
    model: Surrogate | Refusal,
    noise: SeedNoise,
    tolerance: float,
    seed: int,
) -> tuple[Frame, Frame, Tuned | Refusal]:
    noise = noise if noise.reliable else seed_noise(table)
    refused = model if isinstance(model, Refusal) else refuse_response(model, noise)
    if refused is not None or isinstance(model, Refusal):
        assert refused is not None
        return refused, refused, refused
    curves = response.analyse(model, tolerance=tolerance)
    ranges = stable.analyse(curves, model, tolerance=tolerance)
    places = tuning.ends(table, model)
    if places is None:
        return curves, ranges, Refusal("The space has no published point to start from.")
    tuned = Tuned(
        gain=tuning.gain(model, places),
        tunability=tuning.tunability(model, places),
        leave=tuning.leave(model, places, tolerance=tolerance, seed=seed),
        path=tuning.path(model, places),
    )
    return curves, ranges, tuned


def _surfaces(
    model: Surrogate | Refusal, curves: Frame, interactions: Frame
) -> tuple[pd.DataFrame, ...]:
    if isinstance(model, Refusal) or isinstance(curves, Refusal):
        return ()
    known = interactions if isinstance(interactions, pd.DataFrame) else None
    return tuple(pairs.analyse(model, pair) for pair in pairs.choose(model, known))


def _sweep_models(
    table: TrialTable, model: Surrogate | Refusal, loss: str
) -> dict[tuple[str, str], pd.DataFrame]:
    if isinstance(model, Refusal):
        return {}
    found = sweeps.measured(table, loss)
    return {(sweep.knob, sweep.anchor): sweeps.model(model, sweep) for sweep in found}
