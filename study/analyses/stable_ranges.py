"""Over which values of a hyperparameter does the score stay within the tolerance?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from study.analyses.surrogate.surrogate import SurrogateModel


def analyse_stable_ranges(
    curves: pd.DataFrame, surrogate: SurrogateModel, *, tolerance: float, region: str = "good"
) -> pd.DataFrame:
    """Return the values within `tolerance` of the best with 95 % probability, per hyperparameter.

    The range is the widest run of safe positions around the best of the mean curve, and never
    extends beyond the trials. `undetermined` means that not even the best value is known to be
    safe; `outer_low` and `outer_high` bound the values that are not excluded.

    Returns:
        `knob`, `status` (`stable`, `undetermined`, `no data`), `best`, `low`, `high`, `values`
        (choices only), `share` of the range, `decades` (logarithmic hyperparameters), `outer_low`,
        `outer_high`, `cost` (best minus worst supported value of the mean curve), `tolerance`.
    """
    rows = []
    for param, distribution in zip(
        surrogate.observations.params, surrogate.observations.distributions, strict=True
    ):
        curve = curves[(curves["region"] == region) & (curves["knob"] == param)]
        rows.append(
            {"knob": param, **_stable_range_row(curve.reset_index(drop=True), distribution)}
        )
    return pd.DataFrame(rows).assign(tolerance=tolerance)


def _stable_range_row(curve: pd.DataFrame, distribution: BaseDistribution) -> dict[str, object]:
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
    supported = curve["supported"].to_numpy(dtype=bool)
    if not supported.any():
        return empty
    mean = np.where(supported, curve["mean"].to_numpy(dtype=float), -np.inf)
    top = int(mean.argmax())
    status = curve["status"].to_numpy()
    safe = status == "safe"
    possible = supported & (status != "costly")
    row = empty | {
        "status": "stable" if safe[top] else "undetermined",
        "best": curve["value"].iloc[top],
        "cost": float(mean[top] - mean[supported].min()),
    }
    if isinstance(distribution, CategoricalDistribution):
        row["values"] = ", ".join(str(v) for v in curve["value"][safe])
        row["share"] = float(safe.sum() / len(curve)) if safe[top] else float("nan")
        return row
    first, last = _find_run_ends(possible, top)
    row["outer_low"], row["outer_high"] = curve["value"].iloc[first], curve["value"].iloc[last]
    if not safe[top]:
        return row
    first, last = _find_run_ends(safe, top)
    low, high = curve["value"].iloc[first], curve["value"].iloc[last]
    row |= {"low": low, "high": high, "share": _range_share(curve, first, last)}
    if isinstance(distribution, FloatDistribution) and distribution.log:
        row["decades"] = float(np.log10(float(high) / float(low)))
    return row


def _range_share(curve: pd.DataFrame, first: int, last: int) -> float:
    units = curve["unit"].to_numpy(dtype=float)
    if units[0] > 0.0 and len(units) > 1:  # each level of a stepped hyperparameter has its own cell
        return (last - first + 1) / len(units)
    return float(units[last] - units[first])


def _find_run_ends(mask: np.ndarray, at: int) -> tuple[int, int]:
    """Return the ends of the run of True values around `at` (just `at` if it is False)."""
    first = last = at
    while first > 0 and mask[first - 1]:
        first -= 1
    while last + 1 < len(mask) and mask[last + 1]:
        last += 1
    return first, last
