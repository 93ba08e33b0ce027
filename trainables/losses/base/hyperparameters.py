"""Hyperparameters of a loss, read from its builder: types, defaults and choices."""

from __future__ import annotations

import inspect
import math
import numbers
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from trainables.utils.suggestions import suggest_nearest_name


@dataclass(frozen=True)
class ParamInfo:
    """One hyperparameter of a loss.

    Args:
        type: Python type of its values.
        required: Whether it has no default.
        default: Default value, unless required.
        choices: Allowed values of a hyperparameter that names an alternative.
    """

    type: type
    required: bool
    default: bool | int | float | str | None = None
    choices: tuple[str, ...] = ()


def builder_params(builder: Callable[..., object]) -> dict[str, ParamInfo]:
    """Return the hyperparameters of a builder: its keyword-only arguments."""
    hints = get_type_hints(builder)
    params = {}
    for parameter in inspect.signature(builder).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        hint = hints[parameter.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        required = parameter.default is inspect.Parameter.empty
        params[parameter.name] = ParamInfo(
            type=str if choices else hint,
            required=required,
            default=None if required else parameter.default,
            choices=choices,
        )
    return params


def check_params(loss: str, known: Mapping[str, ParamInfo], given: Mapping[str, Any]) -> None:
    """Raise ValueError unless `given` has all required hyperparameters and valid values only."""
    for param in given:
        if param not in known:
            raise ValueError(
                f"{loss}: unknown hyperparameter {param!r}; {suggest_nearest_name(param, known)}"
            )
    missing = [param for param, info in known.items() if info.required and param not in given]
    if missing:
        raise ValueError(
            f"{loss}: missing {', '.join(missing)}; its hyperparameters: {', '.join(known)}"
        )
    for param, value in given.items():
        if not _is_valid_value(known[param], value):
            raise ValueError(
                f"{loss}: `{param}` must be {_describe_type(known[param])}, but got {value!r}"
            )


def as_integer(value: Any) -> int | None:
    """Return an integer of any type, such as numpy's, as an int; None for anything else."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_number(value: Any) -> bool:
    """Whether the value is a finite number; a bool is not a number."""
    if as_integer(value) is not None:
        return True
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return False
    return math.isfinite(value)


def _is_valid_value(info: ParamInfo, value: Any) -> bool:
    if info.type is bool:
        return isinstance(value, bool | np.bool_)
    if info.type is str:
        return isinstance(value, str) and (not info.choices or value in info.choices)
    return is_number(value) and (info.type is float or float(value).is_integer())


def _describe_type(info: ParamInfo) -> str:
    if info.choices:
        return f"one of {', '.join(info.choices)}"
    return {bool: "true or false", str: "a string", int: "an integer"}.get(
        info.type, "a finite number"
    )
