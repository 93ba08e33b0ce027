"""Tracking store of an imported study: written like the store of a study that was run."""

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

from study.directory import StudyDirectory, default_artifact_root, default_tracking_uri
from study.errors import StudyError
from study.importers.values import as_value
from study.tracking.records import SCORE_STD, TrialRecord, metric_key, metric_name, param_key
from study.tracking.tracker import Tracker
from study.trials.job import Job
from study.trials.table import METRIC_PREFIX, PARAM_PREFIX, TrialTable

FLUSH_TIMEOUT_SECONDS = 600.0
MAX_NAME_LENGTH = 250


def store_study(table: TrialTable, study_dir: StudyDirectory) -> None:
    """Write an imported table to an SQLite store in the study's directory.

    If that fails, the directory is removed, unless it held files before.

    Raises:
        StudyError: The store does not accept the name of a metric or hyperparameter, or it refused
            or did not acknowledge some of the records.
    """
    table = replace(table, study=study_dir.name)
    _check_names(table)
    study_dir.path.mkdir(parents=True, exist_ok=True)
    is_new = not any(study_dir.path.iterdir())
    tracker = Tracker(
        default_tracking_uri(study_dir.path),
        spool=study_dir.spool_dir,
        artifact_root=default_artifact_root(study_dir.path),
        experiment=study_dir.name,
    )
    try:
        with tracker:
            _write_study(tracker, table)
            if not tracker.flush(FLUSH_TIMEOUT_SECONDS):
                raise StudyError(
                    f"the store took longer than {FLUSH_TIMEOUT_SECONDS:g} s; run the import again"
                )
            if tracker.get_status().refused:
                raise StudyError(_refusal_message(study_dir, tracker.get_status().refused))
    except BaseException:
        if is_new:
            shutil.rmtree(study_dir.path, ignore_errors=True)
        raise


def _write_study(tracker: Tracker, table: TrialTable) -> None:
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
        _write_trial(tracker, table, row, curves.get(row["trial"]))
    tracker.end_study(state="FINISHED")


def _write_trial(
    tracker: Tracker, table: TrialTable, row: dict[Any, Any], curve: pd.DataFrame | None
) -> None:
    job = Job(
        **{name: row[name] for name in ("trial", "loss", "origin", "split", "anchor", "swept")},
        number=int(row["number"]),
        seed=int(row["seed"]),
        # An integer column with gaps, which other losses leave, is one of floats.
        params={
            name: as_value(distribution, row[PARAM_PREFIX + name])
            for name, distribution in table.spaces[row["loss"]].distributions.items()
        },
    )
    started = float(row["started"])
    tracker.start_trial(TrialRecord(job, started=started))
    metrics = _metrics_by_epoch(row, curve, str(table.protocol["objective"]))
    for epoch, values in sorted(metrics.items()):
        tracker.log_epoch(job.trial, epoch, values, timestamp=started)
    tracker.end_trial(
        job.trial, state=row["state"], seconds=float(row["seconds"]), timestamp=started
    )


def _metrics_by_epoch(
    row: Mapping[Any, Any], curve: pd.DataFrame | None, objective: str
) -> dict[int, dict[str, float]]:
    """Return the learning curve, with the trial's other metrics after the last epoch."""
    steps = [] if curve is None else zip(curve["epoch"], curve["score"], strict=True)
    epochs = {int(epoch): {objective: float(score)} for epoch, score in steps}
    metrics = {
        str(column).removeprefix(METRIC_PREFIX): float(value)
        for column, value in row.items()
        if str(column).startswith(METRIC_PREFIX) and not math.isnan(value)
    }
    if metrics:
        epochs.setdefault(int(row["epochs"]), {objective: math.nan}).update(metrics)
    return epochs


def _check_names(table: TrialTable) -> None:
    """Check names against MLflow's rules and against the names that the store reserves."""
    objective = str(table.protocol["objective"])
    columns = [str(column) for column in table.trials.columns]
    metrics = [c.removeprefix(METRIC_PREFIX) for c in columns if c.startswith(METRIC_PREFIX)]
    for name in metrics:
        if name in (objective, SCORE_STD):
            raise StudyError(
                f"metric {name!r} is written with the score; drop the column "
                f"`{METRIC_PREFIX}{name}`"
            )
    for kind, names in (("objective", [objective]), ("metric", metrics)):
        for name in names:
            _check_name(kind, name, metric_key(name, "test"))
            if metric_name(name) != name:
                start = name.removesuffix(metric_name(name))
                raise StudyError(f"the name of {kind} {name!r} must not begin with {start!r}")
    for space in table.spaces.values():
        for name, param in space.searched_params.items():
            _check_name("hyperparameter", name, param_key(name, param.unit))


def _check_name(kind: str, name: str, key: str) -> None:
    bad = re.sub(r"[/\w.\- :]", "", name)
    if bad:
        raise StudyError(
            f"the name of {kind} {name!r} contains {bad[0]!r}; the tracking store accepts letters, "
            "digits, spaces and / _ . - :"
        )
    # MLflow uses names as paths, which must be normalised.
    path = posixpath.normpath(name)
    if len(key) > MAX_NAME_LENGTH or path != name or path == "." or path.startswith(("..", "/")):
        raise StudyError(f"the tracking store does not accept the name of {kind} {name!r}")


def _refusal_message(study_dir: StudyDirectory, count: int) -> str:
    """Return why the store refused records: the first line of its first reason."""
    with (study_dir.spool_dir / "refused.jsonl").open(encoding="utf-8") as file:
        reason = str(json.loads(file.readline())["reason"]).strip()
    return f"the store refused {count} records: {(reason.splitlines() or [''])[0][:300]}"
