"""Which loss scored best in the search, and what did it take?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.analyses.noise import seed_noise
from study.analyses.samples import full_epochs, published_values, searching
from study.table import KNOB, TrialTable

UNTRAINED = "untrained backbone"


def analyse(table: TrialTable) -> pd.DataFrame:
    """Best and published validation score per loss, best first, and the untrained backbone.

    `best` is the score of the winning trial and therefore optimistic; `repeated` is the mean of
    its repeats with other seeds, which is not (NaN when it was not repeated). Only full-length
    trials compete; `best` falls back on the others while there are none.
    """
    rows = [_row(table, loss) for loss in table.spaces]
    objective = str(table.protocol.get("objective", "score"))
    untrained = table.baseline.get("validation", {}).get(objective)
    if untrained is not None:
        rows.append({"loss": UNTRAINED, "best": float(untrained)})
    frame = pd.DataFrame(rows)
    return frame.sort_values("best", ascending=False, ignore_index=True, na_position="last")


def incumbent(table: TrialTable, loss: str) -> pd.Series | None:
    """The full-length trial of the search with the highest score (any length while there is none).

    Repeated seeds and sweeps do not compete: another seed of a point is another draw from the same
    lottery, and would make the points that were repeated look better than they are.
    """
    trials = searching(table, loss)
    scored = trials[trials["score"].notna() & ~trials["origin"].isin(["sweep", "repeat"])]
    done = scored[scored["epochs"] >= full_epochs(table, loss)]
    pool = done if len(done) else scored
    if pool.empty:
        return None
    return pool.iloc[int(pool["score"].to_numpy(dtype=float).argmax())]


def published_trials(table: TrialTable, loss: str, *, split: str = "validation") -> pd.DataFrame:
    """The trials at the published point, whatever they were run for."""
    trials = table.of(loss)
    trials = trials[trials["split"] == split]
    values = published_values(table, loss)
    if values is None:
        return trials[trials["origin"] == "published"]
    match = np.ones(len(trials), dtype=bool)
    for knob, value in values.items():
        column = trials[KNOB + knob]
        if isinstance(value, str | bool):
            match &= (column.astype(str) == str(value)).to_numpy()
        else:
            gap = (pd.to_numeric(column) - value).abs()
            match &= (gap <= 1e-9 * max(1.0, abs(value))).to_numpy()
    return trials[match | (trials["origin"] == "published").to_numpy()]


def _row(table: TrialTable, loss: str) -> dict[str, object]:
    trials = searching(table, loss)
    best = incumbent(table, loss)
    full = full_epochs(table, loss)
    states = trials["state"].value_counts()
    row: dict[str, object] = {
        "loss": loss,
        "best": float("nan"),
        "repeated": float("nan"),
        "published": float("nan"),
        "seed_sigma": seed_noise(table, loss).sigma,
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
        again = trials[(trials["point"] == best["point"]) & (trials["trial"] != best["trial"])]
        again = again[(again["epochs"] >= full) & again["score"].notna()]
        if len(again):
            row["repeated"] = float(again["score"].mean())
    known = published_trials(table, loss)
    known = known[(known["epochs"] >= full) & known["score"].notna()]
    if len(known):
        row["published"] = float(known["score"].mean())
    return row
