"""Was it safe to stop trials early?

Two rules stop trials (`study.tuning.asha` by rank, `study.tuning.outlook` by the foretold final
score), so two questions are asked of the trials that nobody could stop: do early scores rank them
as their last ones do, and would the best of them have been foretold to fall behind?
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from study.analyses.samples import Array, full_epochs, searching
from study.jobs import Outcome
from study.table import TrialTable
from study.tuning.outlook import LEAST_FINISHED, Outlook, check_epochs

LEAST = LEAST_FINISHED + 1
"""One trial is judged by what the others teach."""
SAFE = 0.7
COLUMNS = [
    "epoch",
    "trials",
    "correlation",
    "low",
    "high",
    "best_kept",
    "best_foretold",
    "verdict",
]


def analyse(table: TrialTable, loss: str, *, seed: int = 0) -> pd.DataFrame:
    """Rank correlation of the score at each rung with the final score.

    Only trials that no scheduler could have stopped count (Sobol and published ones, run to the
    end); among survivors the correlation would be flattered or hidden by the selection itself.

    Returns `epoch`, `trials`, `correlation`, `low`, `high` (90 %), `best_kept` (whether the final
    best was in the better third then), `best_foretold` (whether the other trials' learning curves
    foretell that it may become the best) and `verdict` on the ranks: `safe`, `unsafe` or
    `cannot tell`.
    """
    trials = searching(table, loss)
    full = full_epochs(table, loss)
    free = _never_stopped(trials, full).set_index("trial")
    rows = []
    judged = judged_at(table, loss)
    rungs = _rungs(trials, full, judged[0]) if len(free) >= LEAST else []
    foretold = _foretold(table, free["score"], [int(e) for e in rungs], judged, int(full))
    for epoch in rungs:
        at = table.curves[table.curves["epoch"] == epoch]
        early = at.set_index("trial")["score"].reindex(free.index).dropna()
        if len(early) < LEAST:
            continue
        last = free.loc[early.index, "score"].to_numpy(dtype=float)
        rho, low, high = _spearman(early.to_numpy(dtype=float), last, seed)
        third = np.quantile(early, 2 / 3)
        kept = bool(early.iloc[int(last.argmax())] >= third)
        verdict = "safe" if low >= SAFE else "unsafe" if high < SAFE else "cannot tell"
        rows.append((int(epoch), len(early), rho, low, high, kept, foretold[int(epoch)], verdict))
    return pd.DataFrame(rows, columns=COLUMNS)


def judged_at(table: TrialTable, loss: str) -> list[int]:
    """The epochs at which the search of a loss foretold final scores; the first is its grace.

    A study says them itself. Of imported trials, and where nothing was to be stopped, all that is
    known is where trials were stopped, more than now and then: before that none was in danger.
    """
    said = table.protocol.get("foretold_at", {}).get(loss)
    if said:
        return sorted(int(epoch) for epoch in said)
    trials, full = searching(table, loss), int(full_epochs(table, loss))
    stopped = trials.loc[trials["state"] == "stopped", "epochs"].value_counts(normalize=True)
    often = stopped[stopped >= min(0.1, float(stopped.max()))] if len(stopped) else stopped
    first = max(int(often.index.min()), 1) if len(often) else 1
    return check_epochs(full, first) or [first]


def unknown(table: TrialTable, loss: str) -> str:
    """Why nobody can tell whether stopping was safe; empty if `analyse` can or none was stopped."""
    trials = searching(table, loss)
    stopped = int((trials["state"] == "stopped").sum())
    count = len(_never_stopped(trials, full_epochs(table, loss)))
    if not stopped or count >= LEAST:
        return ""
    were = "trial was" if stopped == 1 else "trials were"
    return (
        f"{stopped} {were} stopped, and of the {LEAST} full-length ones that nothing could stop, "
        f"which it takes to tell, there are {count}"
    )


def _never_stopped(trials: pd.DataFrame, full: float) -> pd.DataFrame:
    """Full-length trials that no rule could have stopped."""
    free = trials[trials["origin"].isin(["sobol", "published"])]
    return free[(free["epochs"] >= full) & free["score"].notna()]


def _foretold(
    table: TrialTable, final: pd.Series, epochs: Sequence[int], judged: Sequence[int], full: int
) -> dict[int, bool]:
    """Whether the best of these trials could have run on, judged by the others at each epoch.

    What is known of a trial then is what the search knew: no score before its grace, where a frozen
    backbone may hide what the trial can do.
    """
    if not epochs:
        return {}
    outlook = Outlook(epochs=0, grace=judged[0], rungs=[*judged, *epochs])
    best = str(final.idxmax())
    curves = table.curves[table.curves["trial"].isin(final.index)]
    for trial, curve in curves.groupby("trial"):
        outlook.replay(str(trial), dict(zip(curve["epoch"], curve["score"], strict=True)))
        if trial != best:
            outlook.ended(str(trial), Outcome("finished", full, float(final[trial])))
    goal = float(final.drop(best).max())
    return {epoch: not outlook.is_hopeless(best, epoch, goal) for epoch in epochs}


def _rungs(trials: pd.DataFrame, full: float, grace: int) -> list[float]:
    """Epochs where trials were stopped; thirds of the way, after the grace, when none was."""
    stopped = trials.loc[trials["state"] == "stopped", "epochs"].value_counts()
    if len(stopped):
        return sorted(float(e) for e in stopped.index[:4])
    return sorted({float(max(round(full / k), grace)) for k in (9, 3)} - {full})


def _spearman(a: Array, b: Array, seed: int) -> tuple[float, float, float]:
    """The correlation and a bootstrap interval, all resamples at once."""
    draws = np.random.default_rng(seed).integers(len(a), size=(400, len(a)))
    x, y = (rankdata(np.concatenate([v[None], v[draws]]), axis=1) for v in (a, b))
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    rho = (x * y).sum(axis=1) / np.maximum(scale, 1e-12)
    low, high = np.quantile(rho[1:], [0.05, 0.95])
    return float(rho[0]), float(low), float(high)
