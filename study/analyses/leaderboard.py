"""Which loss scored best in the search, and with how much effort?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.trials.selection import get_full_epochs, get_published_params, select_validation_trials
from study.trials.table import PARAM_PREFIX, TrialTable

UNTRAINED_BACKBONE_LABEL = "untrained backbone"


def analyse_leaderboard(table: TrialTable) -> pd.DataFrame:
    """Return best and published validation score per loss, best first, and the untrained backbone.

    `best` is the score of the winning trial and therefore optimistic; `repeated` is the mean of its
    repeats with other seeds, which is not (NaN if it was not repeated). Only full-length trials
    compete; while there are none, the others do.
    """
    rows = [_leaderboard_row(table, loss) for loss in table.spaces]
    objective = str(table.protocol.get("objective", "score"))
    untrained = table.baseline.get("validation", {}).get(objective)
    if untrained is not None:
        rows.append({"loss": UNTRAINED_BACKBONE_LABEL, "best": float(untrained)})
    frame = pd.DataFrame(rows)
    return frame.sort_values("best", ascending=False, ignore_index=True, na_position="last")


def find_incumbent_trial(table: TrialTable, loss: str) -> pd.Series | None:
    """Return the full-length search trial with the highest score (any length while there is none).

    Repeated seeds and sweeps do not compete: another seed of a point is another draw from the same
    distribution, and would make repeated points look better than they are.
    """
    trials = select_validation_trials(table, loss)
    scored = trials[trials["score"].notna() & ~trials["origin"].isin(["sweep", "repeat"])]
    full = scored[scored["epochs"] >= get_full_epochs(table, loss)]
    competing = full if len(full) else scored
    if competing.empty:
        return None
    return competing.iloc[int(competing["score"].to_numpy(dtype=float).argmax())]


def select_published_trials(
    table: TrialTable, loss: str, *, split: str = "validation"
) -> pd.DataFrame:
    """Select the trials at the published point, whatever their origin."""
    trials = table.trials_of(loss)
    trials = trials[trials["split"] == split]
    values = get_published_params(table, loss)
    if values is None:
        return trials[trials["origin"] == "published"]
    match = np.ones(len(trials), dtype=bool)
    for param, value in values.items():
        column = trials[PARAM_PREFIX + param]
        if isinstance(value, str | bool):
            match &= (column.astype(str) == str(value)).to_numpy()
        else:
            gap = (pd.to_numeric(column) - value).abs()
            match &= (gap <= 1e-9 * max(1.0, abs(value))).to_numpy()
    return trials[match | (trials["origin"] == "published").to_numpy()]


def _leaderboard_row(table: TrialTable, loss: str) -> dict[str, object]:
    trials = select_validation_trials(table, loss)
    best = find_incumbent_trial(table, loss)
    full = get_full_epochs(table, loss)
    states = trials["state"].value_counts()
    row: dict[str, object] = {
        "loss": loss,
        "best": float("nan"),
        "repeated": float("nan"),
        "published": float("nan"),
        "seed_sigma": estimate_seed_noise(table, loss).sigma,
        "trials": len(trials),
        "finished": int(states.get("finished", 0)),
        "stopped": int(states.get("stopped", 0)),
        "diverged": int(states.get("diverged", 0)),
        "failed": int(states.get("failed", 0)),
        "running": int(states.get("running", 0)),
        "epochs": int(trials["epochs"].sum()),
        "seconds": float(trials["seconds"].sum()),
    }
    if best is not None:
        row["best"] = float(best["score"])
        repeats = trials[(trials["point"] == best["point"]) & (trials["trial"] != best["trial"])]
        repeats = repeats[(repeats["epochs"] >= full) & repeats["score"].notna()]
        if len(repeats):
            row["repeated"] = float(repeats["score"].mean())
    published = select_published_trials(table, loss)
    published = published[(published["epochs"] >= full) & published["score"].notna()]
    if len(published):
        row["published"] = float(published["score"].mean())
    return row
