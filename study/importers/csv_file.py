"""CSV importer: a study from a table of trials and a space file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from search_spaces.space import SearchSpace
from study.errors import StudyError, suggest_nearest_name
from study.importers.space_file import read_spaces
from study.importers.trial_frame import OPTIONAL_COLUMNS, build_table
from study.importers.values import first_error_line
from study.trials.table import METRIC_PREFIX, PARAM_PREFIX, TRIAL_ORIGINS, TRIAL_STATES, TrialTable

CSV_COLUMNS: Mapping[str, str] = {
    "score": "objective, higher is better; empty for a trial that diverged or failed (required)",
    "loss": "name of the loss; default: the only loss of the space file",
    "trial": "key of the trial within its loss; rows with the same key are its epochs. "
    "Default: each row is a trial",
    "epoch": "epochs completed when the score was measured; default: the space file's `epochs`",
    "state": f"one of {', '.join(TRIAL_STATES)}; default: `finished` at the last epoch, `stopped` "
    "before it, `diverged` without a score",
    "seed": "seed; default: 0, and trials with equal settings are then not repetitions",
    "origin": f"one of {', '.join(TRIAL_ORIGINS)}, or `random` (same as sobol); default: `bayes`",
    "split": "`validation` (default) or `test`",
    "seconds": "duration of the trial",
    "metric.NAME": "any other metric",
    "NAME or knob.NAME": "one column per hyperparameter of the space file (required)",
}
"""Columns of a CSV of trials; `study import --columns` prints them."""

_CHOICES = {
    "origin": (*TRIAL_ORIGINS, "random"),
    "split": ("validation", "test"),
    "state": (*TRIAL_STATES, ""),
}


def read_csv_trials(csv: Path, space_yaml: Path, *, study: str | None = None) -> TrialTable:
    """Read a CSV of trials and a description of what was searched.

    Args:
        csv: Table of trials with the columns `CSV_COLUMNS`.
        space_yaml: Space file.
        study: Name of the study; the CSV's name by default.

    Raises:
        StudyError: A file is missing or malformed, a column or hyperparameter is unknown, a value
            is outside its range, or rows of one trial disagree.
    """
    description = read_spaces(space_yaml)
    spaces = description.spaces
    try:
        frame = pd.read_csv(csv, dtype={"trial": str})  # 01 is not 1
    except FileNotFoundError:
        raise StudyError(f"CSV file {csv} does not exist") from None
    except (OSError, ValueError) as error:
        raise StudyError(f"cannot read {csv} as CSV: {first_error_line(error)}") from None
    frame = _rename_columns(frame, spaces, csv)
    _fill_losses(frame, spaces, csv)
    _fill_columns(frame, csv)
    frame = _fill_epochs(frame, description.protocol.get("epochs"), csv)
    frame["trial"] = _unique_trial_keys(frame, csv)
    for loss, rows in frame.groupby("loss"):
        _check_agreement(rows, list(spaces[str(loss)].searched_params), csv)
    # An epoch without a score is not part of the learning curve, except for the last one.
    is_last = frame["epoch"] == frame.groupby("trial")["epoch"].transform("max")
    frame = frame[is_last | frame["score"].notna()]
    params = {k for space in spaces.values() for k in space.searched_params if k in frame}
    columns = [c for c in frame if c in CSV_COLUMNS or str(c).startswith(METRIC_PREFIX)]
    frame = frame[columns].assign(
        **{PARAM_PREFIX + k: frame[k] for k in params}, source=f"{csv}: " + frame["trial"]
    )
    return build_table(study or csv.stem, frame, description)


def _rename_columns(
    frame: pd.DataFrame, spaces: Mapping[str, SearchSpace], csv: Path
) -> pd.DataFrame:
    """Return the frame with hyperparameters under their own names; unknown columns are errors."""
    frame = frame.rename(columns=lambda c: str(c).strip())
    params = {k for space in spaces.values() for k in space.searched_params}
    for param in params:
        if param in frame and PARAM_PREFIX + param in frame:
            raise StudyError(
                f"{csv}: columns `{param}` and `{PARAM_PREFIX}{param}` are the same "
                "hyperparameter; remove one"
            )
    frame = frame.rename(columns={PARAM_PREFIX + k: k for k in params})
    known = {*CSV_COLUMNS, *params} - {"metric.NAME", "NAME or knob.NAME"}
    for column in frame.columns:
        if column not in known and not column.startswith(METRIC_PREFIX):
            raise StudyError(
                f"{csv}: unknown column {column!r}; {suggest_nearest_name(column, known)}"
            )
    if "score" not in frame:
        raise StudyError(f"{csv} has no column `score`")
    if frame.empty:
        raise StudyError(f"{csv} has no rows")
    return frame


def _fill_losses(frame: pd.DataFrame, spaces: Mapping[str, SearchSpace], csv: Path) -> None:
    """Fill in the column `loss` and check that each loss has its hyperparameters' columns."""
    if "loss" not in frame:
        if len(spaces) > 1:
            raise StudyError(f"{csv} needs a column `loss`: the space file has {len(spaces)}")
        frame["loss"] = next(iter(spaces))
    frame["loss"] = frame["loss"].map(str)
    for loss in frame["loss"].unique():
        if loss not in spaces:
            raise StudyError(
                f"{csv}: loss {loss!r} is not in the space file; "
                f"{suggest_nearest_name(loss, spaces)}"
            )
        missing = [k for k in spaces[loss].searched_params if k not in frame]
        if missing:
            raise StudyError(f"{csv} has no column for hyperparameter {missing[0]!r} of {loss}")


def _fill_columns(frame: pd.DataFrame, csv: Path) -> None:
    """Fill in the other columns and check their values."""
    if "trial" not in frame:
        frame["trial"] = [f"{loss}-{i:04d}" for i, loss in enumerate(frame["loss"])]
    for column, value in {**OPTIONAL_COLUMNS, "state": ""}.items():
        frame[column] = frame[column].fillna(value) if column in frame else value
    for column, allowed in _CHOICES.items():
        for value in frame[column].unique():
            if value not in allowed:
                raise StudyError(
                    f"{csv}: unknown {column} {value!r}; "
                    f"{suggest_nearest_name(str(value), allowed)}"
                )
    frame["origin"] = frame["origin"].replace("random", "sobol")
    try:
        for column in frame.columns:
            if column in ("score", "epoch", "seconds") or column.startswith(METRIC_PREFIX):
                frame[column] = pd.to_numeric(frame[column])
        frame["seed"] = _to_whole_numbers(frame, pd.to_numeric(frame["seed"]), "seed", csv)
    except (ValueError, TypeError) as error:
        raise StudyError(f"{csv}: {first_error_line(error)}") from None


def _fill_epochs(frame: pd.DataFrame, full: int | None, csv: Path) -> pd.DataFrame:
    """Return the frame with an epoch in each row: the space file's where the CSV has none."""
    epochs = frame["epoch"] if "epoch" in frame else pd.Series(math.nan, index=frame.index)
    if epochs.isna().any() and full is None:
        trial = frame["trial"][epochs.isna()].iloc[0]
        raise StudyError(
            f"{csv}: {trial} has no epoch; add a column `epoch`, or `epochs` to the space file"
        )
    epochs = epochs.fillna(full) if full is not None else epochs
    frame = frame.assign(epoch=_to_whole_numbers(frame, epochs, "epoch", csv))
    longest = int(frame["epoch"].max())
    if full is not None and longest > full:
        trial = frame["trial"][frame["epoch"] == longest].iloc[0]
        raise StudyError(
            f"{csv}: {trial} has {longest} epochs, but the space file's `epochs` is {full}"
        )
    return frame


def _to_whole_numbers(frame: pd.DataFrame, column: pd.Series, name: str, csv: Path) -> pd.Series:
    """Return the column as whole numbers that a tracking store can hold."""
    numbers = column.astype(float)
    wrong = ~np.isfinite(numbers) | (numbers % 1 != 0) | (numbers.abs() >= 2**53)
    if name == "epoch":
        wrong |= numbers < 0
    if wrong.any():
        place = frame.index[wrong][0]
        rule = "a whole number of at least 0" if name == "epoch" else "a whole number"
        raise StudyError(
            f"{csv}: {frame['trial'][place]}: {name} must be {rule}, got {numbers[place]:g}"
        )
    return column.astype("int64")


def _unique_trial_keys(frame: pd.DataFrame, csv: Path) -> pd.Series:
    """Return the trials' keys, prefixed with the loss where losses share keys."""
    if frame["trial"].isna().any():
        row = int(frame["trial"].isna().to_numpy().argmax()) + 1
        raise StudyError(f"{csv}: row {row} has no `trial`")
    pairs = frame[["loss", "trial"]].drop_duplicates()
    if pairs["trial"].is_unique:
        return frame["trial"]
    keys = pairs["loss"] + "-" + pairs["trial"]
    if not keys.is_unique:
        raise StudyError(
            f"{csv}: two trials have the key {keys[keys.duplicated()].iloc[0]!r}; rename one"
        )
    return frame["loss"] + "-" + frame["trial"]


def _check_agreement(frame: pd.DataFrame, params: list[str], csv: Path) -> None:
    """Check that the rows of a trial differ only in what changes with the epoch."""
    several = frame[frame["trial"].duplicated(keep=False)]
    for trial, rows in several.groupby("trial", sort=False):
        for column in (*params, "seed", "split", "origin"):
            values = rows[column].unique()
            if len(values) > 1:
                raise StudyError(
                    f"{csv}: {trial}: rows disagree in `{column}`: {values[0]} and {values[1]}"
                )
        twice = rows["epoch"][rows["epoch"].duplicated()]
        if len(twice):
            raise StudyError(f"{csv}: {trial}: two rows have epoch {twice.iloc[0]}")
