"""What a knob may be in a study file: one value, a range, or a choice."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)


class Section(BaseModel):
    """A part of a study file: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _plain(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"a number, a word, true or false is wanted, but got {value!r:.60}")
    return value


Scalar = Annotated[bool | int | float | str, BeforeValidator(_plain)]


class Range(Section):
    """A knob's range: `{low, high}` with `log` or `step`, or `{choices}`."""

    low: float | None = Field(default=None, allow_inf_nan=False)
    high: float | None = Field(default=None, allow_inf_nan=False)
    log: bool = False
    step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    integer: bool = False
    choices: tuple[Scalar, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        """`[8, 128]`, `[8, 128, log]` and `{choices: [...]}` mean what they say."""
        if isinstance(value, list):
            if len(value) in (2, 3) and all(_is_number(v) for v in value[:2]):
                if len(value) == 3 and value[2] not in ("log", "linear"):
                    raise ValueError(f"the third entry of a range is log or linear, not {value[2]}")
                return {"low": value[0], "high": value[1], "log": value[2:] == ["log"]}
            raise ValueError("a range is [low, high], [low, high, log] or {choices: [...]}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Range:
        if self.choices is not None:
            if not self.choices:
                raise ValueError("`choices` needs at least one value")
            if self.low is not None or self.high is not None:
                raise ValueError("a range has either choices or low and high")
            if self.log or self.step is not None or self.integer:
                raise ValueError("choices have no log, step or integer")
            if any(isinstance(c, float) and not math.isfinite(c) for c in self.choices):
                raise ValueError(f"`choices` must be finite, but got {list(self.choices)}")
            # To a sampler 1, 1.0 and true are the same choice.
            if any(c in self.choices[:i] for i, c in enumerate(self.choices)):
                raise ValueError(f"`choices` must differ, but got {list(self.choices)}")
            return self
        if self.low is None or self.high is None:
            raise ValueError("a range needs low and high, or choices")
        if not self.low <= self.high:
            raise ValueError(
                f"`low <= high` must hold, but got low={self.low:g}, high={self.high:g}"
            )
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs `low > 0`, but got low={self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("a log range has no step")
        return self


def _kind(value: Any) -> str:
    return RANGE if isinstance(value, list | dict | Range) else VALUE


VALUE, RANGE = "value", "range"
ValueOrRange = Annotated[
    Annotated[Scalar, Tag(VALUE)] | Annotated[Range, Tag(RANGE)], Discriminator(_kind)
]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
