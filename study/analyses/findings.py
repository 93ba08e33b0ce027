"""Everything a study's trials say, computed once, for whatever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.analyses import history, importance, leaderboard, response, stable
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


@dataclass(frozen=True)
class Tolerance:
    """What difference of scores is too small to care about, and who said so."""

    value: float
    source: str


@dataclass(frozen=True)
class LossFindings:
    """What the trials of one loss say; a Refusal stands where they do not say."""

    loss: str
    noise: SeedNoise
    tolerance: Tolerance
    surrogate: Surrogate | Refusal
    importance: pd.DataFrame | Refusal
    good_importance: pd.DataFrame | Refusal
    pairs: pd.DataFrame | Refusal
    curves: pd.DataFrame | Refusal
    stable: pd.DataFrame | Refusal


@dataclass(frozen=True)
class Findings:
    """What a study says."""

    table: TrialTable
    leaderboard: pd.DataFrame
    history: pd.DataFrame
    losses: Mapping[str, LossFindings]


def find(table: TrialTable, *, seed: int = 0) -> Findings:
    """Run every analysis; the same table and seed give the same findings."""
    return Findings(
        table=table,
        leaderboard=leaderboard.analyse(table),
        history=history.analyse(table),
        losses={loss: find_loss(table, loss, seed=seed) for loss in table.spaces},
    )


def tolerance_of(table: TrialTable, loss: str, surrogate: Surrogate | Refusal) -> Tolerance:
    """The user's tolerance; else one seed sigma of the loss, of all losses, or of the model."""
    stated = table.protocol.get("tolerance")
    if stated:
        return Tolerance(float(stated), "set in the study file")
    own, pooled = seed_noise(table, loss), seed_noise(table)
    if own.measured and own.freedom >= 4:
        return Tolerance(own.sigma, "one seed sigma of this loss")
    if pooled.measured:
        return Tolerance(pooled.sigma, "one seed sigma, all losses pooled")
    if isinstance(surrogate, Surrogate):
        return Tolerance(surrogate.noise, "the model's noise (no seed was repeated)")
    return Tolerance(float("nan"), "unknown: no seed was repeated")


def find_loss(table: TrialTable, loss: str, *, seed: int = 0) -> LossFindings:
    """All findings about one loss."""
    samples = gather(table, loss)
    model = fit(samples, seed=seed)
    noise = seed_noise(table, loss)
    tolerance = tolerance_of(table, loss, model)
    if isinstance(model, Refusal):
        return LossFindings(loss, noise, tolerance, model, model, model, model, model, model)
    no_shares = refuse_importance(model)
    whole: pd.DataFrame | Refusal = no_shares or importance.analyse(model, seed=seed)
    pairs: pd.DataFrame | Refusal = no_shares or importance.analyse_pairs(model, seed=seed)
    middle = float(np.median(samples.scores[samples.last]))
    good: pd.DataFrame | Refusal = no_shares or importance.analyse(model, floor=middle, seed=seed)
    no_curves = refuse_response(model, noise)
    if no_curves:
        return LossFindings(loss, noise, tolerance, model, whole, good, pairs, no_curves, no_curves)
    curves = response.analyse(model, tolerance=tolerance.value)
    ranges = stable.analyse(curves, model, tolerance=tolerance.value)
    return LossFindings(loss, noise, tolerance, model, whole, good, pairs, curves, ranges)
