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


def weigh(
    table: TrialTable,
    models: Mapping[str, LossModel],
    loss: str,
    other: str,
    test: BetterLoss | FasterLoss | CostRatio | HigherMetric,
    *,
    seed: int = 0,
) -> Weighed:
    """Probability of the claim and the evidence in words (NaN when there is none)."""
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
    low, high = np.quantile(gap, [0.025, 0.975])
    words = f"{split} score differs by {gap.mean():+.4f} (95 %: {low:+.4f} to {high:+.4f})"
    return float((gap > 0).mean()), words


def _only(table: TrialTable, *losses: str) -> TrialTable:
    """The study with these losses alone: one unconfirmed loss must not demote the others."""
    from dataclasses import replace

    spaces = {k: v for k, v in table.spaces.items() if k in losses}
    return replace(table, spaces=spaces)


def _top_trials(table: TrialTable, loss: str) -> pd.DataFrame:
    """Full-length trials at the tuned point: confirmations, else the best fifth of the search."""
    trials = table.of(loss)
    full = trials[(trials["epochs"] >= full_epochs(table, loss)) & trials["score"].notna()]
    confirmed = full[full["trial"].isin(confirmed_trials(table, loss)["trial"])]
    if len(confirmed) >= 3:
        return confirmed
    searched = searching(table, loss)
    searched = searched[
        (searched["epochs"] >= full_epochs(table, loss)) & searched["score"].notna()
    ]
    return searched.nlargest(max(len(searched) // 5, 3), "score")


def _mean_curves(
    table: TrialTable, trials: pd.DataFrame, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Epochs, and bootstrap means of the trials' learning curves there: draws x epochs."""
    curves = table.curves[table.curves["trial"].isin(trials["trial"])]
    wide = curves.pivot_table(index="trial", columns="epoch", values="score")
    scores = wide.to_numpy(dtype=float)
    drawn = rng.integers(max(len(scores), 1), size=(1000, len(scores)))
    return wide.columns.to_numpy(dtype=float), np.asarray(np.nanmean(scores[drawn], axis=1))


def _reached(epochs: Array, curves: Array, goal: Array) -> Array:
    """The first epoch at which each curve is at its goal; infinity where it never is."""
    there = curves >= goal
    return np.where(there.any(axis=1), epochs[there.argmax(axis=1)], np.inf)


def _faster(table: TrialTable, loss: str, other: str, seed: int) -> Weighed:
    mine, theirs = (_top_trials(table, name) for name in (loss, other))
    if len(mine) < 3 or len(theirs) < 3 or table.curves.empty:
        return float("nan"), "Too few full-length trials with learning curves."
    rng = np.random.default_rng(seed)
    (at_a, a), (at_b, b) = _mean_curves(table, mine, rng), _mean_curves(table, theirs, rng)
    if not a.size or not b.size:
        return float("nan"), "No learning curves."
    goal = b[:, -1:]
    reach_a = _reached(at_a, a, goal)
    # The other loss is granted 99 % of its own final score, or noise at its end would decide.
    reach_b = _reached(at_b, b, goal - 0.01 * np.abs(goal))
    words = (
        f"reaches the other's final {goal.mean():.3f} after {np.median(reach_a):.0f} epochs "
        f"(it: {np.median(reach_b):.0f})"
        if np.isfinite(np.median(reach_a))
        else f"does not reach the other's final {goal.mean():.3f}"
    )
    return float((reach_a < reach_b).mean()), words


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
    low, high = np.quantile(ratio, [0.025, 0.975])
    words = f"an epoch costs {np.median(ratio):.2f} times the other's ({low:.2f} to {high:.2f})"
    return float((ratio <= at_most).mean()), words


def _higher(table: TrialTable, loss: str, other: str, metric: str, seed: int) -> Weighed:
    column = METRIC + metric
    values = []
    for name in (loss, other):
        if incumbent(table, name) is None or column not in table.trials:
            return float("nan"), f"{metric} was not reported."
        found = _top_trials(table, name)[column].dropna().to_numpy(dtype=float)
        if len(found) < 3:
            return float("nan"), f"Fewer than three trials report {metric}."
        values.append(found)
    rng = np.random.default_rng(seed)
    means = [
        v.mean() + v.std(ddof=1) / np.sqrt(len(v)) * rng.standard_t(len(v) - 1, 4000)
        for v in values
    ]
    gap = means[0] - means[1]
    low, high = np.quantile(gap, [0.025, 0.975])
    words = f"{metric} differs by {gap.mean():+.4f} (95 %: {low:+.4f} to {high:+.4f})"
    return float((gap > 0).mean()), words
