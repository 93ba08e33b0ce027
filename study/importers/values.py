"""What do all importers share: rows of the trial table, and careful reading?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from search_spaces.space import Space, describe, in_range
from study.errors import StudyError, nearest
from study.table import KNOB, TrialTable

NO_VALUE = "None"
"""The choice of no value, which Optuna and YAML have, as a word."""


def make_row(
    *,
    trial: str,
    loss: str,
    number: int,
    point: Mapping[str, Any],
    score: float,
    state: str,
    epochs: int,
    origin: str = "bayes",
    split: str = "validation",
    seed: int = 0,
    seconds: float = math.nan,
    metrics: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """One row of the trial table, started in its turn (not at 0, which MLflow takes for now)."""
    key = json.dumps({k: point[k] for k in sorted(point)}, default=str)
    return {
        "trial": trial, "loss": loss, "number": number, "origin": origin, "state": state,
        "split": split, "point": key, "seed": seed, "anchor": "", "swept": "", "epochs": epochs,
        "score": score, "score_std": math.nan, "seconds": seconds, "started": number + 1.0,
        "host": "", "error": "", **(metrics or {}), **{KNOB + k: v for k, v in point.items()},
    }  # fmt: skip


def make_curve(trial: str, steps: Iterable[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Rows of the learning curves."""
    return [{"trial": trial, "epoch": int(e), "score": float(s)} for e, s in steps]


def make_table(
    study: str,
    rows: list[dict[str, Any]],
    curves: list[dict[str, Any]],
    spaces: Mapping[str, Space],
    protocol: Mapping[str, Any],
    untrained: float | None,
) -> TrialTable:
    """The study made of them."""
    baseline = (
        {"validation": {str(protocol["objective"]): untrained}} if untrained is not None else {}
    )
    return TrialTable(
        study=study,
        trials=pd.DataFrame(rows),
        curves=pd.DataFrame(curves, columns=["trial", "epoch", "score"]),
        spaces=dict(spaces),
        protocol={"tolerance": None, **protocol, "imported": True},
        baseline=baseline,
    )


def make_point(values: Mapping[str, Any], space: Space, where: str) -> dict[str, Any]:
    """A trial's knobs, each as its own type.

    Raises:
        StudyError: One is missing, or outside its range.
    """
    point = {}
    for knob, distribution in space.distributions.items():
        if knob not in values:
            raise StudyError(f"{where} has no parameter {knob!r}; {nearest(knob, values)}")
        value = as_value(distribution, values[knob])
        gap = isinstance(value, float) and not math.isfinite(value)
        if gap or not in_range(distribution, value):
            raise StudyError(
                f"{where}: `{knob}={values[knob]}` is outside the space file's range "
                f"{describe(distribution)}"
            )
        point[knob] = value
    return point


def as_value(distribution: BaseDistribution, raw: Any) -> Any:
    """What was read as the knob's own type; as it is when it is none of its values."""
    if isinstance(distribution, CategoricalDistribution):
        if raw is None or (isinstance(raw, float) and math.isnan(raw)):
            raw = NO_VALUE
        for choice in distribution.choices:
            same_number = not isinstance(choice, str | bool) and as_number(raw) == choice
            if str(choice) == str(raw) or same_number:
                return choice
        return raw
    number = as_number(raw)
    if not math.isfinite(number) or isinstance(raw, bool):
        return raw
    whole = isinstance(distribution, IntDistribution) and number == int(number)
    return int(number) if whole else number


def plain_choices(choices: Iterable[Any]) -> list[Any]:
    """Choices as a table can hold them: `None`, which it takes for a gap, becomes a word."""
    return [NO_VALUE if choice is None else choice for choice in choices]


def mapping(content: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
    """A mapping with none but known keys."""
    if not isinstance(content, dict):
        raise StudyError(f"{where} must be a mapping, got {type(content).__name__}")
    for key in content:
        if key not in known:
            raise StudyError(f"{where}: unknown key {key!r}; {nearest(str(key), known)}")
    return {str(k): v for k, v in content.items()}


def as_number(value: Any) -> float:
    """A number, or NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def first_line(error: BaseException) -> str:
    """What an error says first."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def without_secret(url: str) -> str:
    """The URL without user and password."""
    head, mark, tail = url.partition("://")
    return f"{head}{mark}{tail.rsplit('@', 1)[-1]}" if mark else url
