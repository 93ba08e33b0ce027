"""How certain is it that one loss is better, faster or cheaper than another?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from search_spaces.claims import BetterLoss, CostRatio, FasterLoss, HigherMetric
from study.analyses.leaderboard import find_incumbent_trial
from study.analyses.loss_comparison import draw_tuned_scores, select_confirmed_trials
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import FloatArray
from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import METRIC_PREFIX, TrialTable

ClaimEvidence = tuple[float, str]
"""Probability of a claim (NaN if unknown) and the evidence in words."""

COMPLETED_RISE_SHARE = 0.95
"""Share of its total rise after which a learning curve counts as risen."""

MIN_SEEDS_PER_POINT = 3
"""Minimum number of seeds of a tuned point to estimate its spread."""

TOO_FEW_SEEDS_REASON = "One of the two tuned points has fewer than three fresh seeds."


def estimate_claim_probability(
    table: TrialTable,
    models: Mapping[str, LossModel],
    loss: str,
    other: str,
    test: BetterLoss | FasterLoss | CostRatio | HigherMetric,
    *,
    seed: int = 0,
) -> ClaimEvidence:
    """Return the probability of the claim (NaN if unknown) and the evidence in words.

    Intervals are 90 % intervals: a verdict at 95 % lies on one side of them.
    """
    match test:
        case BetterLoss():
            return _compare_tuned_scores(table, models, loss, other, seed)
        case FasterLoss():
            return _compare_rise_epochs(table, loss, other, seed)
        case CostRatio():
            return _compare_epoch_seconds(table, loss, other, test.at_most, seed)
        case HigherMetric():
            return _compare_metric_values(table, loss, other, test.metric, seed)


def _compare_tuned_scores(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, other: str, seed: int
) -> ClaimEvidence:
    surrogates = {name: model.surrogate for name, model in models.items()}
    draws, split = draw_tuned_scores(_restrict_to_losses(table, loss, other), surrogates, seed=seed)
    if loss not in draws or other not in draws:
        return float("nan"), "One of the two losses has no repeated score."
    gap = draws[loss] - draws[other]
    low, high = np.quantile(gap, [0.05, 0.95])
    evidence = f"{split} score differs by {gap.mean():+.4f} (90 %: {low:+.4f} to {high:+.4f})"
    return float((gap > 0).mean()), evidence


def _restrict_to_losses(table: TrialTable, *losses: str) -> TrialTable:
    """Return the study with these losses only: another, unconfirmed loss must not matter."""

    spaces = {k: v for k, v in table.spaces.items() if k in losses}
    return replace(table, spaces=spaces)


def _select_tuned_trials(
    table: TrialTable, loss: str, other: str
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return full-length trials of both tuned points that differ only in their seeds.

    Confirmations if both losses have at least three, else repeats of both incumbents (without the
    winning trials, which were selected by luck as well). The best trials of a search are not
    suitable: they are different settings, selected by score, and their spread is not that of seeds.
    """
    for select in (_select_confirmations, _select_incumbent_repeats):
        trials, other_trials = select(table, loss), select(table, other)
        if min(trials["seed"].nunique(), other_trials["seed"].nunique()) >= MIN_SEEDS_PER_POINT:
            return trials, other_trials
    return None


def _select_confirmations(table: TrialTable, loss: str) -> pd.DataFrame:
    trials = select_confirmed_trials(table, loss)
    return trials[trials["epochs"] >= get_full_epochs(table, loss)]


def _select_incumbent_repeats(table: TrialTable, loss: str) -> pd.DataFrame:
    trials: pd.DataFrame = select_validation_trials(table, loss)
    best = find_incumbent_trial(table, loss)
    full = (trials["epochs"] >= get_full_epochs(table, loss)) & trials["score"].notna()
    if best is None:
        return trials[:0]
    same = (trials["point"] == best["point"]) & (trials["trial"] != best["trial"])
    repeats: pd.DataFrame = trials[full & same]
    return repeats


def _draw_mean(values: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw the mean over all seeds, given these values."""
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return np.asarray(values.mean() + spread * rng.standard_t(len(values) - 1, 4000))


def _compare_rise_epochs(table: TrialTable, loss: str, other: str, seed: int) -> ClaimEvidence:
    """Compare the epochs that each loss takes for most of its rise, whatever its final score."""
    tuned_trials = _select_tuned_trials(table, loss, other)
    if tuned_trials is None:
        return float("nan"), TOO_FEW_SEEDS_REASON
    curves = [
        table.curves[table.curves["trial"].isin(trials["trial"])]
        .pivot_table(index="trial", columns="epoch", values="score")
        .dropna(axis=1)
        for trials in tuned_trials
    ]
    if any(frame.empty for frame in curves):
        return float("nan"), "There are no learning curves."
    # Epochs that were logged for one loss only would make the other one look slower.
    shared = curves[0].columns.intersection(curves[1].columns)
    if len(shared) < 2:
        return float("nan"), "The learning curves share fewer than two epochs."
    epochs, untrained = shared.to_numpy(dtype=float), _untrained_score(table, tuned_trials[0])
    took = [_epochs_to_rise(epochs, c[shared].to_numpy(dtype=float), untrained) for c in curves]
    if any(len(t) < MIN_SEEDS_PER_POINT for t in took):
        return float("nan"), "Fewer than three trials of one of the losses improve in training."
    rng = np.random.default_rng(seed)
    a, b = (_draw_mean(np.log(t), rng) for t in took)
    low, high = np.exp(np.quantile(a - b, [0.05, 0.95]))
    mean, other_mean = (float(np.exp(np.log(t).mean())) for t in took)
    evidence = (
        f"{COMPLETED_RISE_SHARE:.0%} of its rise after {mean:.1f} epochs, "
        f"the other's after {other_mean:.1f}: "
        f"{mean / other_mean:.2f} times (90 %: {low:.2f} to {high:.2f})"
    )
    return float((a < b).mean() + 0.5 * (a == b).mean()), evidence


def _untrained_score(table: TrialTable, trials: pd.DataFrame) -> float:
    """Return the score before the first epoch on the split of these trials; infinity if unknown."""
    metrics = table.baseline.get(str(trials["split"].iloc[0]), {})
    return float(metrics.get(str(table.protocol.get("objective", "score")), np.inf))


def _epochs_to_rise(epochs: FloatArray, curves: FloatArray, untrained: float) -> FloatArray:
    """Return the (interpolated) epoch at which each curve has completed most of its rise.

    A curve rises from the untrained score, or from its first epoch if that is unknown or lower.
    Curves that do not rise are left out.
    """
    out = []
    for curve in curves:
        start = min(float(curve[0]), untrained)
        if curve[-1] <= start:
            continue
        goal = start + COMPLETED_RISE_SHARE * (curve[-1] - start)
        first = int((curve >= goal).argmax())
        if first == 0:
            out.append(epochs[0])
            continue
        below, above = curve[first - 1], curve[first]
        part = (goal - below) / (above - below)
        out.append(epochs[first - 1] + part * (epochs[first] - epochs[first - 1]))
    return np.array(out)


def _compare_epoch_seconds(
    table: TrialTable, loss: str, other: str, at_most: float, seed: int
) -> ClaimEvidence:
    each = []
    for name in (loss, other):
        trials = table.trials_of(name)
        trials = trials[(trials["epochs"] > 0) & (trials["seconds"] > 0)]
        if len(trials) < 3:
            return float("nan"), "There are too few timed trials."
        each.append((trials["seconds"] / trials["epochs"]).to_numpy(dtype=float))
    rng = np.random.default_rng(seed)
    medians = [np.median(rng.choice(x, size=(1000, len(x))), axis=1) for x in each]
    ratio = medians[0] / medians[1]
    low, high = np.quantile(ratio, [0.05, 0.95])
    evidence = (
        f"an epoch takes {np.median(ratio):.2f} times as long as the other's "
        f"(90 %: {low:.2f} to {high:.2f})"
    )
    return float((ratio <= at_most).mean()), evidence


def _compare_metric_values(
    table: TrialTable, loss: str, other: str, metric: str, seed: int
) -> ClaimEvidence:
    column = METRIC_PREFIX + metric
    if column not in table.trials:
        return float("nan"), f"{metric} was not reported."
    tuned_trials = _select_tuned_trials(table, loss, other)
    if tuned_trials is None:
        return float("nan"), TOO_FEW_SEEDS_REASON
    values = [trials[column].dropna().to_numpy(dtype=float) for trials in tuned_trials]
    if any(len(v) < MIN_SEEDS_PER_POINT for v in values):
        return float("nan"), f"Fewer than three trials report {metric}."
    rng = np.random.default_rng(seed)
    a, b = (_draw_mean(v, rng) for v in values)
    gap = a - b
    low, high = np.quantile(gap, [0.05, 0.95])
    evidence = f"{metric} differs by {gap.mean():+.4f} (90 %: {low:+.4f} to {high:+.4f})"
    return float((gap > 0).mean()), evidence
