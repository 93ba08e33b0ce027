"""Trial frame: the rows that every importer produces, and the trial table built from them.

A frame has one row per trial and epoch. Columns: `trial`, `loss`, `epoch`, `score` (NaN if nothing
was measured), `state` (empty: inferred), `source` (names the trial in error messages), one
`knob.NAME` per hyperparameter; optionally `number`, `origin`, `split`, `seed`, `seconds` and
`metric.NAME`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from search_spaces.space import SearchSpace, describe_distribution, in_range
from study.errors import StudyError, suggest_nearest_name
from study.importers.space_file import SpaceDescription
from study.importers.values import as_value
from study.trials.job import point_key
from study.trials.table import PARAM_PREFIX, TrialTable

OPTIONAL_COLUMNS: Mapping[str, str | float] = {
    "origin": "bayes",
    "split": "validation",
    "seed": 0,
    "seconds": math.nan,
}
"""Columns that a frame may lack, with their defaults."""


def build_table(
    study: str, frame: pd.DataFrame, description: SpaceDescription, *, check_ranges: bool = True
) -> TrialTable:
    """Build the trial table of a frame.

    A trial's score, metrics and state are those of its last epoch.

    Args:
        study: Name of the study.
        frame: See the module's docstring.
        description: Search spaces and protocol; `epochs` is the longest trial's when absent.
        check_ranges: Whether to compare the values with the ranges of the spaces.

    Raises:
        StudyError: A value is outside its range, or a finished trial has no score.
    """
    frame = frame.assign(**{k: v for k, v in OPTIONAL_COLUMNS.items() if k not in frame})
    if "number" not in frame:
        frame["number"] = frame.groupby("trial", sort=False).ngroup()
    frame = frame.sort_values(["number", "epoch"], kind="stable")
    epochs = description.protocol.get("epochs") or max(int(frame["epoch"].max()), 1)
    last = frame.drop_duplicates("trial", keep="last").reset_index(drop=True)
    rows = last.to_dict("records")
    params = [_convert_params(row, description.spaces[row["loss"]], check_ranges) for row in rows]
    state = pd.Series([_trial_state(row, epochs) for row in rows], dtype=object)
    trials = last.assign(
        state=state,
        score=last["score"].where(~state.isin(["diverged", "failed"])),
        score_std=math.nan,
        epochs=last["epoch"],
        point=[point_key(row["loss"], point) for row, point in zip(rows, params, strict=True)],
        started=last["number"] + 1.0,  # MLflow replaces a start at 0 by the present time
        **dict.fromkeys(("anchor", "swept", "host", "error"), ""),
    ).drop(columns=["epoch", "source", *(c for c in last if str(c).startswith(PARAM_PREFIX))])
    objective = str(description.protocol["objective"])
    untrained = description.untrained
    # A trial that ended before its first epoch has a row, but no learning curve.
    measured = frame["score"].notna() | (frame["epoch"] > 0)
    return TrialTable(
        study=study,
        trials=trials.join(pd.DataFrame(params).add_prefix(PARAM_PREFIX)),
        curves=frame.loc[measured, ["trial", "epoch", "score"]].reset_index(drop=True),
        spaces=dict(description.spaces),
        protocol={"tolerance": None, **description.protocol, "epochs": epochs, "imported": True},
        baseline={} if untrained is None else {"validation": {objective: untrained}},
    )


def select_params(values: Mapping[str, Any], space: SearchSpace, source: str) -> dict[str, Any]:
    """Return the values of the space's hyperparameters, under the names of their columns.

    Args:
        values: All logged parameters of a trial.
        space: What was searched.
        source: Names the trial in the error message.

    Raises:
        StudyError: One is missing.
    """
    for name in space.searched_params:
        if name not in values:
            raise StudyError(
                f"{source} has no parameter {name!r}; {suggest_nearest_name(name, values)}"
            )
    return {PARAM_PREFIX + name: values[name] for name in space.searched_params}


def _convert_params(
    row: Mapping[Any, Any], space: SearchSpace, check_ranges: bool
) -> dict[str, Any]:
    """Return a trial's hyperparameters, each converted to its type."""
    params = {}
    for name, distribution in space.distributions.items():
        raw = row[PARAM_PREFIX + name]
        value = as_value(distribution, raw)
        is_gap = isinstance(value, float) and not math.isfinite(value)
        if check_ranges and (is_gap or not in_range(distribution, value)):
            raise StudyError(
                f"{row['source']}: `{name}={raw}` is outside the space file's range "
                f"{describe_distribution(distribution)}"
            )
        params[name] = value
    return params


def _trial_state(row: Mapping[Any, Any], epochs: int) -> str:
    has_score = math.isfinite(row["score"])
    if row["state"] == "finished" and not has_score:
        raise StudyError(
            f"{row['source']}: state is `finished`, but there is no score; "
            "set `diverged` or `failed`"
        )
    if row["state"]:
        return str(row["state"])
    if not has_score:
        return "diverged"
    return "stopped" if row["epoch"] < epochs else "finished"
