"""A study from the folder of a Ray Tune run."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.space import Space
from study.errors import StudyError
from study.importing.rows import (
    as_number,
    first_line,
    make_curve,
    make_point,
    make_row,
    make_table,
)
from study.table import TrialTable


def read_tune(folder: Path, space: Space, *, metric: str, mode: str = "max") -> TrialTable:
    """A study from the folder of a Ray Tune run: each trial's params.json and result.json.

    A trial whose last metric is not finite diverged; one with an error file and fewer epochs than
    the longest failed; one with fewer and no error was stopped. A trial that Tune started again
    has epochs twice in its log: the later ones count. Nested parameters are named by their last
    part (`loss_config/margin` is `margin`), nested metrics by their path (`eval/map`).
    """
    logs = sorted(folder.glob("**/result.json"))
    if not logs:
        raise StudyError(f"{folder} holds no result.json: not the folder of a Tune run")
    sign = {"max": 1.0, "min": -1.0}.get(mode)
    if sign is None:
        raise StudyError(f"mode must be max or min, got {mode!r}")
    found = []
    for log in logs:
        steps, config, seconds = _tune_results(log, metric)
        found.append((log.parent, steps, config, seconds))
    full = max(max(steps, default=0) for _, steps, _, _ in found)
    if full == 0:
        raise StudyError(f"no trial in {folder} reports {metric!r}")
    rows, curves = [], []
    for number, (place, steps, config, seconds) in enumerate(found):
        done = max(steps, default=0)
        last = sign * steps[done] if steps else math.nan
        state = _state(place, steps, full)
        key = f"{space.loss}-{number:04d}"
        rows.append(
            make_row(
                trial=key, loss=space.loss, number=number, state=state, epochs=done,
                point=make_point(config, space, place.name), seconds=seconds,
                score=last if state in ("finished", "stopped") else math.nan,
            )
        )  # fmt: skip
        curves += make_curve(key, ((epoch, sign * v) for epoch, v in sorted(steps.items())))
    protocol = {"objective": metric if sign > 0 else f"-{metric}", "epochs": full}
    return make_table(folder.name, rows, curves, {space.loss: space}, protocol, None)


def _state(place: Path, steps: Mapping[int, float], full: int) -> str:
    """What became of a trial, by its metric and whether it left an error.

    A trial that went on after an error keeps the error's file.
    """
    if not steps:
        return "failed"
    done = max(steps)
    if not math.isfinite(steps[done]):
        return "diverged"
    if done >= full:
        return "finished"
    failed = any((place / name).exists() for name in ("error.txt", "error.pkl"))
    return "failed" if failed else "stopped"


def _tune_results(log: Path, metric: str) -> tuple[dict[int, float], dict[str, Any], float]:
    """The metric by epoch, flat parameters and seconds of one trial."""
    steps: dict[int, float] = {}
    seconds = math.nan
    config: dict[str, Any] = {}
    try:
        for result in _lines(log):
            value = _found(result, metric)
            if value is not None:
                epoch = result.get("training_iteration", max(steps, default=0) + 1)
                steps[int(epoch)] = as_number(value)
            seconds = as_number(result.get("time_total_s", seconds))
            config = result.get("config", config)
        params = log.parent / "params.json"
        if params.is_file():
            config = json.loads(params.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StudyError(f"{log} is not a Tune log: {first_line(error)}") from None
    return steps, _flat(config), seconds


def _lines(log: Path) -> list[dict[str, Any]]:
    """The results of a log; the last line of a run that was killed may be half a line."""
    lines = [line for line in log.read_text("utf-8").splitlines() if line.strip()]
    results = [json.loads(line) for line in lines[:-1]]
    with contextlib.suppress(ValueError):
        results += [json.loads(line) for line in lines[-1:]]
    if lines and not results:
        raise ValueError("none of its lines is JSON")
    return results


def _found(result: Mapping[str, Any], metric: str) -> Any:
    """A metric by its name, or by its path through nested ones; None where there is none."""
    if metric in result:
        return result[metric]
    value: Any = result
    for part in metric.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            out |= _flat(value)
        else:
            out[str(key).rsplit("/", 1)[-1]] = value
    return out
