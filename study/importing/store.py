"""Imported trials enter the house by the same door as our own: the tracking store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from study.errors import StudyError
from study.home import StudyHome
from study.table import KNOB, METRIC, TrialTable
from study.tracking.local import default_artifact_root, default_uri
from study.tracking.records import TrialRecord
from study.tracking.writer import Tracker

SECONDS = 600.0


def store_study(table: TrialTable, home: StudyHome) -> None:
    """Write an imported table to an sqlite store in the study's directory.

    Raises:
        StudyError: The store did not take it all.
    """
    table = replace(table, study=home.name)
    home.directory.mkdir(parents=True, exist_ok=True)
    with Tracker(
        default_uri(home.directory),
        spool=home.spool,
        artifact_root=default_artifact_root(home.directory),
        experiment=home.name,
    ) as tracker:
        tracker.open_study(
            name=home.name,
            plan={
                "spaces": {loss: space.to_dict() for loss, space in table.spaces.items()},
                "protocol": dict(table.protocol),
                "baseline": {split: dict(values) for split, values in table.baseline.items()},
            },
            losses=list(table.spaces),
            note=f"**{home.name}**: {len(table.trials)} trials that were run elsewhere.",
        )
        curves = dict(iter(table.curves.groupby("trial")))
        for row in table.trials.to_dict("records"):
            _trial(tracker, table, row, curves.get(row["trial"]))
        tracker.end_study(state="FINISHED")
        if not tracker.flush(SECONDS):
            raise StudyError(f"the store took longer than {SECONDS:g} s; try again")


def _trial(
    tracker: Tracker, table: TrialTable, row: dict[Any, Any], curve: pd.DataFrame | None
) -> None:
    space = table.spaces[row["loss"]]
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
            knobs={knob: row[KNOB + knob] for knob in space.searched},
            started=started,
        )
    )
    objective = str(table.protocol["objective"])
    for step in [] if curve is None else curve.to_dict("records"):
        metrics = {
            str(key).removeprefix(METRIC): float(value)
            for key, value in step.items()
            if str(key).startswith(METRIC) and value == value
        }
        metrics.setdefault(objective, float(step["score"]))
        tracker.epoch(row["trial"], int(step["epoch"]), metrics, timestamp=started)
    tracker.trial_ended(
        row["trial"], state=row["state"], error=row["error"], host=row["host"], timestamp=started
    )
