"""How sure is it that one loss is better, faster or cheaper than another?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from search_spaces.claims import BetterLoss, CostRatio, FasterLoss, HigherMetric
from study.analyses.comparison import best_draws, confirmed_trials
from study.analyses.leaderboard import incumbent
from study.analyses.loss_model import LossModel
from study.analyses.samples import Array, full_epochs, searching
from study.table import METRIC, TrialTable

Weighed = tuple[float, str]

RISEN = 0.95
"""The share of its rise after which a learning curve counts as there."""

LEAST_SEEDS = 3
"""Fewest seeds of a tuned point whose spread says anything."""

TOO_FEW = "Fewer than three fresh seeds of one of the two tuned points."


def weigh(
    table: TrialTable,
    models: Mapping[str, LossModel],
    loss: str,
    other: str,
    test: BetterLoss | FasterLoss | CostRatio | HigherMetric,
    *,
    seed: int = 0,
) -> Weighed:
    """Probability of the claim and the evidence in words (NaN when there is none).

    Intervals are of 90 %: a verdict at 95 % is one that lies on one side of them.
    """
    match test:
        case BetterLoss():
            return _better(table, models, loss, other, seed)
        case FasterLoss():
            return _faster(table, loss, other, seed)
        case CostRatio():
            return _cheaper(table, loss, other, test.at_most, seed)
        case HigherMetric():
            return _higher(table, loss, other, test.metric, seed)


def _better(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, other: str, seed: int
) -> Weighed:
    surrogates = {name: model.surrogate for name, model in models.items()}
    draws, split = best_draws(_only(table, loss, other), surrogates, seed=seed)
    if loss not in draws or other not in draws:
        return float("nan"), "One of the two has no repeated score."
    gap = draws[loss] - draws[other]
    low, high = np.quantile(gap, [0.05, 0.95])
    words = f"{split} score differs by {gap.mean():+.4f} (90 %: {low:+.4f} to {high:+.4f})"
    return float((gap > 0).mean()), words


def _only(table: TrialTable, *losses: str) -> TrialTable:
    """The study with these losses alone: one unconfirmed loss must not demote the others."""
    from dataclasses import replace

    spaces = {k: v for k, v in table.spaces.items() if k in losses}
    return replace(table, spaces=spaces)


def _tuned_trials(
    table: TrialTable, loss: str, other: str
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Full-length trials of both tuned points that differ in nothing but their seeds.

    Confirmations if both losses have three or more, else as many repeats of both incumbents
    (without the trials that won, which luck chose). The best trials of a search would not do: they
    are different settings, picked by score, and their spread is not that of seeds.
    """
    for of in (_confirmations, _repeats):
        mine, theirs = of(table, loss), of(table, other)
        if min(mine["seed"].nunique(), theirs["seed"].nunique()) >= LEAST_SEEDS:
            return mine, theirs
    return None


def _confirmations(table: TrialTable, loss: str) -> pd.DataFrame:
    trials = confirmed_trials(table, loss)
    return trials[trials["epochs"] >= full_epochs(table, loss)]


def _repeats(table: TrialTable, loss: str) -> pd.DataFrame:
    trials: pd.DataFrame = searching(table, loss)
    best = incumbent(table, loss)
    full = (trials["epochs"] >= full_epochs(table, loss)) & trials["score"].notna()
    if best is None:
        return trials[:0]
    same = (trials["point"] == best["point"]) & (trials["trial"] != best["trial"])
    repeats: pd.DataFrame = trials[full & same]
    return repeats


def _plausible_mean(values: Array, rng: np.random.Generator) -> Array:
    """Draws of the mean over all seeds, given these."""
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return np.asarray(values.mean() + spread * rng.standard_t(len(values) - 1, 4000))


def _faster(table: TrialTable, loss: str, other: str, seed: int) -> Weighed:
    """By the epochs each takes for most of its own rise: who ends higher is another question."""
    found = _tuned_trials(table, loss, other)
    if found is None:
        return float("nan"), TOO_FEW
    wide = [
        table.curves[table.curves["trial"].isin(trials["trial"])]
        .pivot_table(index="trial", columns="epoch", values="score")
        .dropna(axis=1)
        for trials in found
    ]
    if any(curves.empty for curves in wide):
        return float("nan"), "No learning curves."
    # What one log leaves out must not count as epochs of one loss alone.
    shared = wide[0].columns.intersection(wide[1].columns)
    if len(shared) < 2:
        return float("nan"), "The learning curves share fewer than two epochs."
    epochs, untrained = shared.to_numpy(dtype=float), _untrained(table, found[0])
    took = [_epochs_to_rise(epochs, c[shared].to_numpy(dtype=float), untrained) for c in wide]
    if any(len(t) < LEAST_SEEDS for t in took):
        return float("nan"), "Fewer than three trials of one of them end above where they start."
    rng = np.random.default_rng(seed)
    a, b = (_plausible_mean(np.log(t), rng) for t in took)
    low, high = np.exp(np.quantile(a - b, [0.05, 0.95]))
    mine, theirs = (float(np.exp(np.log(t).mean())) for t in took)
    words = (
        f"{RISEN:.0%} of its rise after {mine:.1f} epochs, the other's after {theirs:.1f}: "
        f"{mine / theirs:.2f} times (90 %: {low:.2f} to {high:.2f})"
    )
    return float((a < b).mean() + 0.5 * (a == b).mean()), words


def _untrained(table: TrialTable, trials: pd.DataFrame) -> float:
    """The score before the first epoch on the classes of these trials; infinity if unknown."""
    known = table.baseline.get(str(trials["split"].iloc[0]), {})
    return float(known.get(str(table.protocol.get("objective", "score")), np.inf))


def _epochs_to_rise(epochs: Array, curves: Array, untrained: float) -> Array:
    """When each curve (row) has done most of its rise, between epochs; flat ones are left out.

    It rises from the untrained score, or from its own first epoch where that is unknown or lower.
    """
    out = []
    for curve in curves:
        start = min(float(curve[0]), untrained)
        if curve[-1] <= start:
            continue
        goal = start + RISEN * (curve[-1] - start)
        first = int((curve >= goal).argmax())
        if first == 0:
            out.append(epochs[0])
            continue
        below, above = curve[first - 1], curve[first]
        part = (goal - below) / (above - below)
        out.append(epochs[first - 1] + part * (epochs[first] - epochs[first - 1]))
    return np.array(out)


def _cheaper(table: TrialTable, loss: str, other: str, at_most: float, seed: int) -> Weighed:
    each = []
    for name in (loss, other):
        trials = table.of(name)
        trials = trials[(trials["epochs"] > 0) & (trials["seconds"] > 0)]
        if len(trials) < 3:
            return float("nan"), "Too few timed trials."
        each.append((trials["seconds"] / trials["epochs"]).to_numpy(dtype=float))
    rng = np.random.default_rng(seed)
    medians = [np.median(rng.choice(x, size=(1000, len(x))), axis=1) for x in each]
    ratio = medians[0] / medians[1]
    low, high = np.quantile(ratio, [0.05, 0.95])
    words = (
        f"an epoch costs {np.median(ratio):.2f} times the other's (90 %: {low:.2f} to {high:.2f})"
    )
    return float((ratio <= at_most).mean()), words


def _higher(table: TrialTable, loss: str, other: str, metric: str, seed: int) -> Weighed:
    column = METRIC + metric
    if column not in table.trials:
        return float("nan"), f"{metric} was not reported."
    found = _tuned_trials(table, loss, other)
    if found is None:
        return float("nan"), TOO_FEW
    values = [trials[column].dropna().to_numpy(dtype=float) for trials in found]
    if any(len(v) < LEAST_SEEDS for v in values):
        return float("nan"), f"Fewer than three trials report {metric}."
    rng = np.random.default_rng(seed)
    a, b = (_plausible_mean(v, rng) for v in values)
    gap = a - b
    low, high = np.quantile(gap, [0.05, 0.95])
    words = f"{metric} differs by {gap.mean():+.4f} (90 %: {low:+.4f} to {high:+.4f})"
    return float((gap > 0).mean()), words
