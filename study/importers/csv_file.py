"""A study from a CSV of trials and a space file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from search_spaces.space import Space
from study.errors import StudyError, nearest
from study.importing.rows import (
    as_number,
    first_line,
    make_curve,
    make_point,
    make_row,
    make_table,
)
from study.importing.space_file import read_spaces
from study.table import KNOB, METRIC, ORIGINS, STATES, TrialTable

CSV_COLUMNS: Mapping[str, str] = {
    "score": "objective, higher is better; empty for a trial that diverged or failed (needed)",
    "loss": "name of the loss; the only loss of the space file when absent",
    "trial": "key of the trial within its loss; rows that share it are its epochs. Each row is a "
    "trial when absent",
    "epoch": "epochs done when the score was taken; the space file's `epochs` when absent",
    "state": f"one of {', '.join(STATES)}; `finished` at the last epoch, `stopped` before it and "
    "`diverged` without a score when absent",
    "seed": "seed; 0 when absent, and then equal settings do not count as repeats",
    "origin": f"one of {', '.join(ORIGINS)}, or `random` (as sobol); `bayes` when absent",
    "split": "`validation` (when absent) or `test`",
    "seconds": "duration of the trial",
    "metric.NAME": "any other metric",
    "NAME or knob.NAME": "one column per knob of the space file (needed)",
}
"""Columns of a CSV of trials; `study import --columns` prints them."""


def read_csv_trials(csv: Path, space_yaml: Path, *, study: str | None = None) -> TrialTable:
    """A study from a table of trials and a description of what was searched.

    Raises:
        StudyError: A file is missing or malformed, a column or knob is unknown, a value is out of
            its range, rows of one trial disagree.
    """
    spaces, protocol, untrained = read_spaces(space_yaml)
    try:
        frame = pd.read_csv(csv, dtype={"trial": str})  # 01 is not 1
    except (OSError, ValueError) as error:
        raise StudyError(f"{csv} is no readable CSV: {first_line(error)}") from None
    frame = _check_columns(frame, spaces, csv)
    frame = _check_epochs(frame, protocol.get("epochs"), csv)
    frame["trial"] = _unique_keys(frame, csv)
    protocol.setdefault("epochs", max(int(frame["epoch"].max()), 1))
    rows, curves = [], []
    for number, (key, group) in enumerate(frame.groupby("trial", sort=False)):
        ordered = group.sort_values("epoch", kind="stable")
        last = ordered.iloc[-1]
        loss = str(last["loss"])
        _check_agreement(ordered, spaces[loss], f"{csv}: {key}")
        cells = {str(column): cell for column, cell in last.items()}
        point = make_point(cells, spaces[loss], f"{csv}: {key}")
        score = as_number(last["score"])
        state = _state(last, score, float(protocol["epochs"]), f"{csv}: {key}")
        rows.append(
            make_row(
                trial=str(key),
                loss=loss,
                number=number,
                point=point,
                score=score if state not in ("diverged", "failed") else math.nan,
                state=state,
                epochs=int(last["epoch"]),
                origin="sobol" if last["origin"] == "random" else str(last["origin"]),
                split=str(last["split"]),
                seed=int(last["seed"]),
                seconds=as_number(last.get("seconds", math.nan)),
                metrics={
                    c: as_number(last[c]) for c in map(str, frame.columns) if c.startswith(METRIC)
                },
            )
        )
        known = ordered[ordered["score"].notna()]
        curves += make_curve(str(key), zip(known["epoch"], known["score"], strict=True))
    return make_table(study or csv.stem, rows, curves, spaces, protocol, untrained)


def _check_columns(frame: pd.DataFrame, spaces: Mapping[str, Space], csv: Path) -> pd.DataFrame:
    """The frame with all columns, defaults filled in; unknown columns are errors."""
    frame = frame.rename(columns=lambda c: str(c).strip())
    knobs = {k for space in spaces.values() for k in space.searched}
    for knob in knobs:
        if knob in frame and KNOB + knob in frame:
            raise StudyError(f"{csv}: `{knob}` and `{KNOB}{knob}` are both columns of one knob")
    frame = frame.rename(columns={KNOB + k: k for k in knobs})
    known = {*CSV_COLUMNS, *knobs} - {"metric.NAME", "NAME or knob.NAME"}
    for column in frame.columns:
        if column not in known and not str(column).startswith(METRIC):
            raise StudyError(f"{csv}: unknown column {column!r}; {nearest(str(column), known)}")
    if "score" not in frame:
        raise StudyError(f"{csv} has no column `score`")
    if frame.empty:
        raise StudyError(f"{csv} has no rows")
    if "loss" not in frame:
        if len(spaces) > 1:
            raise StudyError(f"{csv} needs a column `loss`: the space file has {len(spaces)}")
        frame["loss"] = next(iter(spaces))
    for loss in frame["loss"].unique():
        if str(loss) not in spaces:
            raise StudyError(
                f"{csv}: loss {str(loss)!r} has no space; {nearest(str(loss), spaces)}"
            )
        missing = [k for k in spaces[str(loss)].searched if k not in frame]
        if missing:
            raise StudyError(f"{csv} has no column for knob {missing[0]!r} of {loss}")
    if "trial" not in frame:
        frame["trial"] = [f"{loss}-{i:04d}" for i, loss in enumerate(frame["loss"])]
    defaults: dict[str, Any] = {
        "seed": 0,
        "origin": "bayes",
        "split": "validation",
        "state": "",
    }
    for column, value in defaults.items():
        frame[column] = frame[column].fillna(value) if column in frame else value
    for column, allowed in (("origin", (*ORIGINS, "random")), ("split", ("validation", "test")),
                            ("state", (*STATES, ""))):  # fmt: skip
        for value in frame[column].unique():
            if value not in allowed:
                raise StudyError(
                    f"{csv}: {column} {value!r} is unknown; {nearest(str(value), allowed)}"
                )
    try:
        for column in frame.columns:
            if column in ("score", "epoch", "seconds") or str(column).startswith(METRIC):
                frame[column] = pd.to_numeric(frame[column])
        frame["seed"] = _whole(frame, pd.to_numeric(frame["seed"]), "seed", csv)
    except (ValueError, TypeError) as error:
        raise StudyError(f"{csv}: {first_line(error)}") from None
    return frame


def _whole(frame: pd.DataFrame, column: pd.Series, name: str, csv: Path) -> pd.Series:
    """The column as whole numbers that a store can hold; an epoch is none below 0."""
    numbers = column.astype(float)
    wrong = ~np.isfinite(numbers) | (numbers % 1 != 0) | (numbers.abs() >= 2**53)
    if name == "epoch":
        wrong |= numbers < 0
    if wrong.any():
        place = frame.index[wrong][0]
        raise StudyError(
            f"{csv}: {frame['trial'][place]}: {name} {numbers[place]:g} is no whole number "
            "that fits"
        )
    return column.astype("int64")


def _check_epochs(frame: pd.DataFrame, full: int | None, csv: Path) -> pd.DataFrame:
    """The frame with a whole epoch in each row, the space file's where the CSV has none."""
    epochs = frame["epoch"] if "epoch" in frame else pd.Series(math.nan, index=frame.index)
    if epochs.isna().any() and full is None:
        trial = frame["trial"][epochs.isna()].iloc[0]
        raise StudyError(
            f"{csv}: {trial} has no epoch: give a column `epoch`, or `epochs` in the space file"
        )
    epochs = epochs.fillna(full) if full is not None else epochs
    frame = frame.assign(epoch=_whole(frame, epochs, "epoch", csv))
    longest = int(frame["epoch"].max())
    if full is not None and longest > full:
        trial = frame["trial"][frame["epoch"] == longest].iloc[0]
        raise StudyError(
            f"{csv}: {trial} has {longest} epochs, but a full trial has {full} "
            "by the space file's `epochs`"
        )
    return frame


def _unique_keys(frame: pd.DataFrame, csv: Path) -> pd.Series:
    """Keys of the trials, with the loss's name before them where losses share some."""
    if frame["trial"].isna().any():
        row = int(frame["trial"].isna().to_numpy().argmax()) + 1
        raise StudyError(f"{csv}: row {row} has no `trial`")
    pairs = frame[["loss", "trial"]].drop_duplicates()
    if pairs["trial"].is_unique:
        return frame["trial"]
    keys = pairs["loss"].astype(str) + "-" + pairs["trial"]
    if not keys.is_unique:
        raise StudyError(f"{csv}: two trials would both be {keys[keys.duplicated()].iloc[0]!r}")
    return frame["loss"].astype(str) + "-" + frame["trial"]


def _check_agreement(trial: pd.DataFrame, space: Space, where: str) -> None:
    """Rows of one trial differ in nothing but what an epoch changes."""
    for column in (*space.searched, "seed", "split", "origin"):
        values = trial[column].unique()
        if len(values) > 1:
            raise StudyError(
                f"{where}: its rows disagree in `{column}`: {values[0]} and {values[1]}"
            )
    twice = trial["epoch"][trial["epoch"].duplicated()]
    if len(twice):
        raise StudyError(f"{where}: two rows of epoch {twice.iloc[0]}")


def _state(row: pd.Series, score: float, full: float, where: str) -> str:
    if row["state"] == "finished" and not math.isfinite(score):
        raise StudyError(f"{where}: `finished` without a score; was it diverged or failed?")
    if row["state"]:
        return str(row["state"])
    if not math.isfinite(score):
        return "diverged"
    return "stopped" if row["epoch"] < full else "finished"
