"""What is a knob of a loss: its type, its default, its choices?"""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np


@dataclass(frozen=True)
class KnobInfo:
    """One knob of a loss: its Python type, and its default unless it is required.

    `choices` lists the allowed values of a knob that names an alternative.
    """

    type: type
    required: bool
    default: bool | int | float | str | None = None
    choices: tuple[str, ...] = ()


def knobs_of(builder: Callable[..., object]) -> dict[str, KnobInfo]:
    """The keyword-only arguments of a builder are its knobs."""
    hints = get_type_hints(builder)
    knobs = {}
    for parameter in inspect.signature(builder).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        hint = hints[parameter.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        required = parameter.default is inspect.Parameter.empty
        knobs[parameter.name] = KnobInfo(
            type=str if choices else hint,
            required=required,
            default=None if required else parameter.default,
            choices=choices,
        )
    return knobs


def check_knobs(loss: str, known: Mapping[str, KnobInfo], given: Mapping[str, Any]) -> None:
    """Raise ValueError unless all required knobs are given, and only known ones of their types."""
    for knob in given:
        if knob not in known:
            raise ValueError(f"{loss}: unknown knob {knob!r}; {nearest(knob, known)}.")
    missing = [knob for knob, info in known.items() if info.required and knob not in given]
    if missing:
        raise ValueError(f"{loss}: missing {', '.join(missing)}; its knobs: {', '.join(known)}.")
    for knob, value in given.items():
        if not _fits(known[knob], value):
            raise ValueError(f"{loss}: `{knob}` must be {_rule(known[knob])}, but got {value!r}.")


def whole(value: Any) -> int | None:
    """The value as an int, whoever made it (numpy, say); None for a bool or what is no integer."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_number(value: Any) -> bool:
    """Whether the value is a finite number; a bool is none."""
    if whole(value) is not None:
        return True
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return False
    return math.isfinite(value)


def _fits(info: KnobInfo, value: Any) -> bool:
    if info.type is bool:
        return isinstance(value, bool | np.bool_)
    if info.type is str:
        return isinstance(value, str) and (not info.choices or value in info.choices)
    return is_number(value) and (info.type is float or float(value).is_integer())


def _rule(info: KnobInfo) -> str:
    if info.choices:
        return f"one of {', '.join(info.choices)}"
    return {bool: "true or false", str: "a word", int: "a whole number"}.get(
        info.type, "a finite number"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name, with all that is known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(known)}"
