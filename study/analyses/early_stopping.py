"""Was it safe to stop trials early?

Two rules stop trials: `study.search.asha` by rank, `study.search.curve_prediction` by the predicted
final score. Two questions are therefore put to the trials that neither rule could stop: do their
early scores rank them like their final scores, and would the best of them have been predicted to
fall behind?
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import ConstantInputWarning, pearsonr, rankdata

from study.analyses.surrogate.observations import FloatArray
from study.search.curve_prediction import (
    MIN_TRIALS_TO_PREDICT,
    CurvePredictor,
    list_prediction_epochs,
)
from study.trials.job import TrialOutcome
from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import TrialTable

MIN_FULL_LENGTH_TRIALS = MIN_TRIALS_TO_PREDICT + 1
"""One trial is judged by a predictor that was fitted to the others."""
SAFE_RANK_CORRELATION = 0.7
"""Early and final ranks correlate at least this much where stopping is called safe."""
EARLY_STOPPING_COLUMNS = [
    "epoch",
    "trials",
    "correlation",
    "low",
    "high",
    "best_kept",
    "best_foretold",
    "verdict",
]


def analyse_early_stopping(table: TrialTable, loss: str, *, seed: int = 0) -> pd.DataFrame:
    """Return the rank correlation of the score at each rung with the final score.

    Only trials that no rule could stop count (Sobol and published points, trained to the end):
    among the survivors of early stopping, the selection itself would bias the correlation.

    Returns:
        `epoch`, `trials`, `correlation`, `low`, `high` (90 %), `best_kept` (whether the final best
        was in the better third at that epoch), `best_foretold` (whether the learning curves of the
        other trials predict that it can become the best) and `verdict` on the ranks: `safe`,
        `unsafe` or `cannot tell`.
    """
    trials = select_validation_trials(table, loss)
    full = get_full_epochs(table, loss)
    unstoppable = _select_unstoppable_trials(trials, full).set_index("trial")
    rows = []
    prediction_epochs = get_prediction_epochs(table, loss)
    rungs = []
    if len(unstoppable) >= MIN_FULL_LENGTH_TRIALS:
        rungs = _rung_epochs(trials, full, prediction_epochs[0])
    survives = _predict_best_survival(
        table, unstoppable["score"], [int(e) for e in rungs], prediction_epochs, int(full)
    )
    for epoch in rungs:
        at = table.curves[table.curves["epoch"] == epoch]
        early = at.set_index("trial")["score"].reindex(unstoppable.index).dropna()
        if len(early) < MIN_FULL_LENGTH_TRIALS:
            continue
        last = unstoppable.loc[early.index, "score"].to_numpy(dtype=float)
        rho, low, high = compute_spearman_interval(early.to_numpy(dtype=float), last, seed)
        third = np.quantile(early, 2 / 3)
        best_kept = bool(early.iloc[int(last.argmax())] >= third)
        verdict = (
            "safe"
            if low >= SAFE_RANK_CORRELATION
            else "unsafe"
            if high < SAFE_RANK_CORRELATION
            else "cannot tell"
        )
        ranks = (int(epoch), len(early), rho, low, high, best_kept)
        rows.append((*ranks, survives[int(epoch)], verdict))
    return pd.DataFrame(rows, columns=EARLY_STOPPING_COLUMNS)


def get_prediction_epochs(table: TrialTable, loss: str) -> list[int]:
    """Return the epochs at which the search predicted final scores; the first is its grace period.

    A study records them. For imported trials, and where early stopping was off, only the epochs at
    which trials were stopped are known; epochs with very few stopped trials are ignored.
    """
    recorded = table.protocol.get("foretold_at", {}).get(loss)
    if recorded:
        return sorted(int(epoch) for epoch in recorded)
    trials, full = select_validation_trials(table, loss), int(get_full_epochs(table, loss))
    stopped = trials.loc[trials["state"] == "stopped", "epochs"].value_counts(normalize=True)
    frequent = stopped[stopped >= min(0.1, float(stopped.max()))] if len(stopped) else stopped
    first = max(int(frequent.index.min()), 1) if len(frequent) else 1
    return list_prediction_epochs(full, first) or [first]


def explain_missing_evidence(table: TrialTable, loss: str) -> str:
    """Return why it is unknown whether stopping was safe.

    Empty if `analyse_early_stopping` has an answer or if no trial was stopped.
    """
    trials = select_validation_trials(table, loss)
    stopped = int((trials["state"] == "stopped").sum())
    count = len(_select_unstoppable_trials(trials, get_full_epochs(table, loss)))
    if not stopped or count >= MIN_FULL_LENGTH_TRIALS:
        return ""
    trials_were = "trial was" if stopped == 1 else "trials were"
    return (
        f"{stopped} {trials_were} stopped; an answer needs {MIN_FULL_LENGTH_TRIALS} full-length "
        f"trials that could not be stopped, and there are {count}"
    )


def _select_unstoppable_trials(trials: pd.DataFrame, full: float) -> pd.DataFrame:
    """Select full-length trials that no rule could have stopped."""
    unstoppable = trials[trials["origin"].isin(["sobol", "published"])]
    return unstoppable[(unstoppable["epochs"] >= full) & unstoppable["score"].notna()]


def _predict_best_survival(
    table: TrialTable,
    final: pd.Series,
    epochs: Sequence[int],
    prediction_epochs: Sequence[int],
    full: int,
) -> dict[int, bool]:
    """Return, for each epoch, whether the best of these trials would have been allowed to continue.

    The prediction uses what the search knew: no score before the grace period, in which a frozen
    backbone may hide how good the trial is.
    """
    if not epochs:
        return {}
    predictor = CurvePredictor(
        epochs=0, grace=prediction_epochs[0], rungs=[*prediction_epochs, *epochs]
    )
    best = str(final.idxmax())
    curves = table.curves[table.curves["trial"].isin(final.index)]
    for trial, curve in curves.groupby("trial"):
        predictor.replay_curve(str(trial), dict(zip(curve["epoch"], curve["score"], strict=True)))
        if trial != best:
            predictor.end_trial(str(trial), TrialOutcome("finished", full, float(final[trial])))
    goal = float(final.drop(best).max())
    return {epoch: not predictor.cannot_reach(best, epoch, goal) for epoch in epochs}


def _rung_epochs(trials: pd.DataFrame, full: float, grace: int) -> list[float]:
    """Return the epochs at which trials were stopped, or thirds of the training if none was."""
    stopped = trials.loc[trials["state"] == "stopped", "epochs"].value_counts()
    if len(stopped):
        return sorted(float(e) for e in stopped.index[:4])
    return sorted({float(max(round(full / k), grace)) for k in (9, 3)} - {full})


def compute_spearman_interval(
    a: FloatArray, b: FloatArray, seed: int
) -> tuple[float, float, float]:
    """Return Spearman's correlation and its 90 % bootstrap interval; 0 for constant input."""
    draws = np.random.default_rng(seed).integers(len(a), size=(400, len(a)))
    x, y = (rankdata(np.concatenate([v[None], v[draws]]), axis=1) for v in (a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        # `spearmanr` has no row-wise form; Pearson's correlation of the ranks is the same number.
        rho = np.nan_to_num(pearsonr(x, y, axis=1).statistic)
    low, high = np.quantile(rho[1:], [0.05, 0.95])
    return float(rho[0]), float(low), float(high)
