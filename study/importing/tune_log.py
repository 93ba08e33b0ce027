"""A study from the folder of a Ray Tune run."""

from __future__ import annotations

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

    A trial whose last metric is not finite diverged; one with an error file failed; one that
    reported less often than the longest was stopped. Nested parameters are named by their last
    part (`loss_config/margin` is `margin`).
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
    full = max(len(steps) for _, steps, _, _ in found)
    if full == 0:
        raise StudyError(f"no trial in {folder} reports {metric!r}")
    rows, curves = [], []
    for number, (place, steps, config, seconds) in enumerate(found):
        last = sign * steps[-1] if steps else math.nan
        failed = (place / "error.txt").exists() or (place / "error.pkl").exists()
        state = (
            "failed" if failed or not steps else "diverged" if not math.isfinite(last)
            else "finished" if len(steps) >= full else "stopped"
        )  # fmt: skip
        key = f"{space.loss}-{number:04d}"
        rows.append(
            make_row(
                trial=key, loss=space.loss, number=number, state=state, epochs=len(steps),
                point=make_point(config, space, place.name), seconds=seconds,
                score=last if state in ("finished", "stopped") else math.nan,
            )
        )  # fmt: skip
        curves += make_curve(key, enumerate((sign * v for v in steps), start=1))
    protocol = {"objective": metric if sign > 0 else f"-{metric}", "epochs": full}
    return make_table(folder.name, rows, curves, {space.loss: space}, protocol, None)


def _tune_results(log: Path, metric: str) -> tuple[list[float], dict[str, Any], float]:
    """Values of the metric, flat parameters and seconds of one trial."""
    steps: list[float] = []
    seconds = math.nan
    config: dict[str, Any] = {}
    try:
        for line in log.read_text("utf-8").splitlines():
            if not line.strip():
                continue
            result = json.loads(line)
            if metric in result:
                steps.append(as_number(result[metric]))
            seconds = as_number(result.get("time_total_s", seconds))
            config = result.get("config", config)
        params = log.parent / "params.json"
        if params.is_file():
            config = json.loads(params.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StudyError(f"{log} is not a Tune log: {first_line(error)}") from None
    return steps, _flat(config), seconds


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            out |= _flat(value)
        else:
            out[str(key).rsplit("/", 1)[-1]] = value
    return out
