"""Imported trials enter the house by the same door as our own: the tracking store."""

from __future__ import annotations

import json
import math
import posixpath
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from study.errors import StudyError
from study.home import StudyHome
from study.importing.rows import as_value
from study.table import KNOB, METRIC, TrialTable
from study.tracking.local import default_artifact_root, default_uri
from study.tracking.records import TrialRecord, metric_key, metric_name, param_key
from study.tracking.writer import Tracker

SECONDS = 600.0
NAME_LENGTH = 250
SCORE_STD = "score_std"


def store_study(table: TrialTable, home: StudyHome) -> None:
    """Write an imported table to an sqlite store in the study's directory: whole, or not at all.

    Raises:
        StudyError: A metric or knob has a name the store does not take, or the store did not take
            it all.
    """
    table = replace(table, study=home.name)
    _check_names(table)
    home.directory.mkdir(parents=True, exist_ok=True)
    fresh = not any(home.directory.iterdir())
    tracker = Tracker(
        default_uri(home.directory),
        spool=home.spool,
        artifact_root=default_artifact_root(home.directory),
        experiment=home.name,
    )
    try:
        with tracker:
            _write(tracker, table)
            if not tracker.flush(SECONDS):
                raise StudyError(f"the store took longer than {SECONDS:g} s; try again")
            if tracker.status().refused:
                raise StudyError(_refusal(home, tracker.status().refused))
    except BaseException:
        if fresh:
            shutil.rmtree(home.directory, ignore_errors=True)
        raise


def _write(tracker: Tracker, table: TrialTable) -> None:
    tracker.open_study(
        name=table.study,
        plan={
            "spaces": {loss: space.to_dict() for loss, space in table.spaces.items()},
            "protocol": dict(table.protocol),
            "baseline": {split: dict(values) for split, values in table.baseline.items()},
        },
        losses=list(table.spaces),
        note=f"**{table.study}**: {len(table.trials)} trials that were run elsewhere.",
    )
    curves = dict(iter(table.curves.groupby("trial")))
    for row in table.trials.to_dict("records"):
        _trial(tracker, table, row, curves.get(row["trial"]))
    tracker.end_study(state="FINISHED")


def _trial(
    tracker: Tracker, table: TrialTable, row: dict[Any, Any], curve: pd.DataFrame | None
) -> None:
    searched = table.spaces[row["loss"]].searched
    started = float(row["started"]) if row["started"] == row["started"] else 0.0
    tracker.trial_started(
        TrialRecord(
            trial=row["trial"],
            loss=row["loss"],
            number=int(row["number"]),
            origin=row["origin"],
            seed=int(row["seed"]),
            split=row["split"],
            point=row["point"],
            anchor=row["anchor"],
            swept=row["swept"],
            # A column of whole numbers with gaps, which other losses leave, is one of floats.
            knobs={k: as_value(knob.distribution, row[KNOB + k]) for k, knob in searched.items()},
            started=started,
        )
    )
    for epoch, metrics in sorted(_epochs(row, curve, str(table.protocol["objective"])).items()):
        tracker.epoch(row["trial"], epoch, metrics, timestamp=started)
    tracker.trial_ended(
        row["trial"],
        state=row["state"],
        error=row["error"],
        host=row["host"],
        seconds=float(row["seconds"]),
        timestamp=started,
    )


def _epochs(
    row: Mapping[Any, Any], curve: pd.DataFrame | None, objective: str
) -> dict[int, dict[str, float]]:
    """Metrics by epoch: the learning curve, and after the last epoch the trial's own numbers.

    A reader takes score and metrics from the last epoch. So a trial without a curve gets a last
    epoch, and a final score that is not the curve's end takes its place.
    """
    steps = [] if curve is None else curve.to_dict("records")
    epochs = {int(step["epoch"]): {objective: float(step["score"])} for step in steps}
    score, last = float(row["score"]), int(row["epochs"])
    final = {objective: score} if math.isfinite(score) else {}
    for column, value in row.items():
        if str(column).startswith(METRIC) and not math.isnan(value):
            final[str(column).removeprefix(METRIC)] = float(value)
    if math.isfinite(row[SCORE_STD]):
        final[SCORE_STD] = float(row[SCORE_STD])
    if final or last > max(epochs, default=0):
        epochs[last] = {objective: math.nan} | epochs.get(last, {}) | final
    return epochs


def _check_names(table: TrialTable) -> None:
    """MLflow takes few characters, and some names mean something of their own in the store."""
    objective = str(table.protocol["objective"])
    columns = [str(column) for column in table.trials.columns]
    metrics = [c.removeprefix(METRIC) for c in columns if c.startswith(METRIC)]
    for name in metrics:
        if name in (objective, SCORE_STD):
            raise StudyError(f"the metric {name!r} is no other metric: leave `{METRIC}{name}` out")
    for kind, names in (("objective", [objective]), ("metric", metrics)):
        for name in names:
            _check_name(kind, name, metric_key(name, "test"))
            if metric_name(name) != name:
                start = name.removesuffix(metric_name(name))
                raise StudyError(f"the {kind} {name!r} must not begin with {start!r}")
    for space in table.spaces.values():
        for name, knob in space.searched.items():
            _check_name("knob", name, param_key(name, knob.unit))


def _check_name(kind: str, name: str, key: str) -> None:
    bad = re.sub(r"[/\w.\- :]", "", name)
    if bad:
        raise StudyError(
            f"the {kind} {name!r} has {bad[0]!r} in its name; the tracking store takes letters, "
            "digits and any of / _ . - : and space"
        )
    # A name is a path too, and must be its shortest one.
    path = posixpath.normpath(name)
    if len(key) > NAME_LENGTH or path != name or path == "." or path.startswith(("..", "/")):
        raise StudyError(f"the tracking store takes no {kind} of the name {name!r}")


def _refusal(home: StudyHome, count: int) -> str:
    """Why the store refused records, in its own words."""
    with (home.spool / "refused.jsonl").open(encoding="utf-8") as file:
        reason = str(json.loads(file.readline())["reason"]).strip()
    return f"the store refused {count} of the records: {(reason.splitlines() or [''])[0][:300]}"
