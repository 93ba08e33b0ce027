"""Ray Tune importer: a study from the folder of a Tune run."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study.errors import StudyError
from study.importers.space_file import SpaceDescription
from study.importers.trial_frame import build_table, select_params
from study.importers.values import as_number, first_error_line
from study.trials.job import trial_key
from study.trials.table import TrialTable

_ERROR_FILES = ("error.txt", "error.pkl")


def read_tune(
    folder: Path, description: SpaceDescription, *, metric: str, mode: str = "max"
) -> TrialTable:
    """Read the folder of a Ray Tune run: each trial's params.json and result.json.

    A trial diverged if its last metric is not finite. One with fewer epochs than the longest trial
    failed if it has an error file, and was stopped early otherwise. If Tune restarted a trial, its
    log has some epochs twice, and the later values count. Nested parameters are named by their last
    part (`loss_config/margin` is `margin`), nested metrics by their path (`eval/map`).

    Args:
        folder: Of the run.
        description: What was searched, of one loss.
        metric: Name of the objective.
        mode: `max`, or `min` to import the negated metric.

    Raises:
        StudyError: The folder or a log cannot be read, no trial reports the metric, or a trial
            lacks a hyperparameter of the space or has a value outside its range.
    """
    logs = sorted(folder.glob("**/result.json"))
    if not logs:
        raise StudyError(f"{folder} has no result.json; it is not the folder of a Tune run")
    sign = {"max": 1.0, "min": -1.0}.get(mode)
    if sign is None:
        raise StudyError(f"mode must be max or min, got {mode!r}")
    trials = [(log.parent, *_read_tune_trial(log, metric)) for log in logs]
    full = max(max(steps, default=0) for _, steps, _, _ in trials)
    if full == 0:
        raise StudyError(f"no trial in {folder} reports {metric!r}")
    ((loss, space),) = description.spaces.items()
    rows = []
    for number, (place, steps, config, seconds) in enumerate(trials):
        cells = {
            "trial": trial_key(loss, number),
            "loss": loss,
            "state": "failed" if _has_failed(place, steps, full) else "",
            "seconds": seconds,
            "source": place.name,
            **select_params(config, space, place.name),
        }
        values = sorted(steps.items()) or [(0, math.nan)]
        rows += [{**cells, "epoch": epoch, "score": sign * value} for epoch, value in values]
    description = description.for_log(objective=metric if sign > 0 else f"-{metric}", epochs=full)
    return build_table(folder.name, pd.DataFrame(rows), description)


def _has_failed(place: Path, steps: Mapping[int, float], full: int) -> bool:
    """Whether a trial ended with an error; one that continued after an error keeps the file."""
    if not steps:
        return True
    is_short = max(steps) < full and math.isfinite(steps[max(steps)])
    return is_short and any((place / name).exists() for name in _ERROR_FILES)


def _read_tune_trial(log: Path, metric: str) -> tuple[dict[int, float], dict[str, Any], float]:
    """Return the metric by epoch, the flattened parameters and the seconds of one trial."""
    steps: dict[int, float] = {}
    seconds = math.nan
    config: dict[str, Any] = {}
    try:
        for result in _read_result_lines(log):
            value = _find_metric(result, metric)
            if value is not None:
                epoch = result.get("training_iteration", max(steps, default=0) + 1)
                steps[int(epoch)] = as_number(value)
            seconds = as_number(result.get("time_total_s", seconds))
            config = result.get("config", config)
        params = log.parent / "params.json"
        if params.is_file():
            config = json.loads(params.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StudyError(f"cannot read {log} as a Tune log: {first_error_line(error)}") from None
    return steps, _flatten_config(config), seconds


def _read_result_lines(log: Path) -> list[dict[str, Any]]:
    """Return the results of a log; a killed run may have left an incomplete last line."""
    lines = [line for line in log.read_text("utf-8").splitlines() if line.strip()]
    results = [json.loads(line) for line in lines[:-1]]
    with contextlib.suppress(ValueError):
        results += [json.loads(line) for line in lines[-1:]]
    if lines and not results:
        raise ValueError("none of its lines is JSON")
    return results


def _find_metric(result: Mapping[str, Any], metric: str) -> Any:
    """Return a metric by its name, or by its path through nested metrics; None if missing."""
    if metric in result:
        return result[metric]
    value: Any = result
    for part in metric.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flatten_config(value)
        else:
            flat[str(key).rsplit("/", 1)[-1]] = value
    return flat
