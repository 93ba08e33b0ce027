"""Conversion of cells, YAML values and logged parameters to the types of a search space."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

NO_VALUE = "None"
"""Name of the choice `None`, which Optuna and YAML allow and a table would read as a gap."""


def as_value(distribution: BaseDistribution, raw: Any) -> Any:
    """Convert a raw value to the type of its hyperparameter.

    Args:
        distribution: Of the hyperparameter.
        raw: A number, a text or None, as it was read.

    Returns:
        The choice or the number; `raw` itself when it does not fit the distribution's type.
    """
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


def as_number(value: Any) -> float:
    """Convert a value to a float; NaN when it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def replace_none_choices(choices: Iterable[Any]) -> list[Any]:
    """Replace the choice `None` by its name, so that a table can hold it."""
    return [NO_VALUE if choice is None else choice for choice in choices]


def first_error_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
