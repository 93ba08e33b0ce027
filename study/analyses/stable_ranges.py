"""Over which values of a knob is it safe to move?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from study.analyses.surrogate import Surrogate


def analyse(
    curves: pd.DataFrame, surrogate: Surrogate, *, tolerance: float, region: str = "good"
) -> pd.DataFrame:
    """One row per knob: the values within `tolerance` of the best with 95 % probability.

    The range is the widest run of safe positions around the best of the mean curve, never beyond
    the trials. `undetermined` means that the data do not say even at the best value; `outer_low`
    and `outer_high` bound what is not excluded.

    Returns:
        `knob`, `status` (`stable`, `undetermined`, `no data`), `best`, `low`, `high`, `values`
        (choices only), `share` of the range, `decades` (logarithmic knobs), `outer_low`,
        `outer_high`, `cost` (mean loss over the worst supported value), `tolerance`.
    """
    rows = []
    for knob, distribution in zip(
        surrogate.samples.knobs, surrogate.samples.distributions, strict=True
    ):
        curve = curves[(curves["region"] == region) & (curves["knob"] == knob)]
        rows.append({"knob": knob, **_range(curve.reset_index(drop=True), distribution)})
    return pd.DataFrame(rows).assign(tolerance=tolerance)


def _range(curve: pd.DataFrame, distribution: BaseDistribution) -> dict[str, object]:
    empty: dict[str, object] = {
        "status": "no data",
        "best": None,
        "low": None,
        "high": None,
        "values": "",
        "share": float("nan"),
        "decades": float("nan"),
        "outer_low": None,
        "outer_high": None,
        "cost": float("nan"),
    }
    known = curve["supported"].to_numpy(dtype=bool)
    if not known.any():
        return empty
    mean = np.where(known, curve["mean"].to_numpy(dtype=float), -np.inf)
    top = int(mean.argmax())
    status = curve["status"].to_numpy()
    safe = status == "safe"
    possible = known & (status != "costly")
    row = empty | {
        "status": "stable" if safe[top] else "undetermined",
        "best": curve["value"].iloc[top],
        "cost": float(mean[top] - mean[known].min()),
    }
    if isinstance(distribution, CategoricalDistribution):
        row["values"] = ", ".join(str(v) for v in curve["value"][safe])
        row["share"] = float(safe.sum() / len(curve)) if safe[top] else float("nan")
        return row
    first, last = _run(possible, top)
    row["outer_low"], row["outer_high"] = curve["value"].iloc[first], curve["value"].iloc[last]
    if not safe[top]:
        return row
    first, last = _run(safe, top)
    low, high = curve["value"].iloc[first], curve["value"].iloc[last]
    row |= {"low": low, "high": high, "share": _share(curve, first, last)}
    if isinstance(distribution, FloatDistribution) and distribution.log:
        row["decades"] = float(np.log10(float(high) / float(low)))
    return row


def _share(curve: pd.DataFrame, first: int, last: int) -> float:
    units = curve["unit"].to_numpy(dtype=float)
    if units[0] > 0.0 and len(units) > 1:  # values of a stepped knob own a cell each
        return (last - first + 1) / len(units)
    return float(units[last] - units[first])


def _run(mask: np.ndarray, at: int) -> tuple[int, int]:
    """Ends of the run of True around `at` (just `at` when it is False)."""
    first = last = at
    while first > 0 and mask[first - 1]:
        first -= 1
    while last + 1 < len(mask) and mask[last + 1]:
        last += 1
    return first, last
