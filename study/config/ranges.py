"""Values of a hyperparameter in a study file: a fixed value, a range or a list of choices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from study.errors import StudyError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class ConfigModel(BaseModel):
    """Base of the sections of a study file: frozen, unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"must be a number, a string, true or false, but got {value!r:.60}")
    return value


ScalarValue = Annotated[bool | int | float | str, BeforeValidator(_check_scalar)]


class ParamRange(ConfigModel):
    """Range of a hyperparameter: `{low, high}` with `log` or `step`, or `{choices}`."""

    low: float | None = Field(default=None, allow_inf_nan=False)
    high: float | None = Field(default=None, allow_inf_nan=False)
    log: bool = False
    step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    integer: bool = False
    choices: tuple[ScalarValue, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        """Accept the short forms `[8, 128]` and `[8, 128, log]`."""
        if isinstance(value, list):
            if len(value) in (2, 3) and all(_is_number(v) for v in value[:2]):
                if len(value) == 3 and value[2] not in ("log", "linear"):
                    raise ValueError(
                        f"the third entry of a range must be log or linear, but got {value[2]!r}"
                    )
                return {"low": value[0], "high": value[1], "log": value[2:] == ["log"]}
            raise ValueError("a range must be [low, high], [low, high, log] or {choices: [...]}")
        return value

    @model_validator(mode="after")
    def _check_bounds(self) -> ParamRange:
        if self.choices is not None:
            if not self.choices:
                raise ValueError("`choices` needs at least one value")
            if self.low is not None or self.high is not None:
                raise ValueError("a range must have either choices or low and high, not both")
            if self.log or self.step is not None or self.integer:
                raise ValueError("`choices` cannot be combined with log, step or integer")
            if any(isinstance(c, float) and not math.isfinite(c) for c in self.choices):
                raise ValueError(f"`choices` must be finite, but got {list(self.choices)}")
            # Samplers treat 1, 1.0 and true as the same choice.
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
            raise ValueError("a log range cannot have a step")
        return self

    def to_distribution(self, name: str, *, is_integer: bool = False) -> BaseDistribution:
        """Return the range as an Optuna distribution.

        Args:
            name: Name of the hyperparameter, for the error message.
            is_integer: Whether it takes integers only, even if the range does not say `integer`.

        Raises:
            StudyError: If it takes integers only, but the bounds or the step are not integers.
        """
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        if self.choices is not None:
            return CategoricalDistribution(self.choices)
        assert self.low is not None
        assert self.high is not None
        if not (self.integer or is_integer):
            return FloatDistribution(self.low, self.high, self.log, self.step)
        step = 1 if self.step is None else self.step
        if any(number != int(number) for number in (self.low, self.high, step)):
            steps = "" if self.step is None else f" in steps of {self.step:g}"
            raise StudyError(
                f"`{name}` must be an integer, but its range is {self.low:g}..{self.high:g}{steps}"
            )
        return IntDistribution(int(self.low), int(self.high), self.log, int(step))


def _value_or_range_tag(value: Any) -> str:
    return RANGE_TAG if isinstance(value, list | dict | ParamRange) else VALUE_TAG


VALUE_TAG, RANGE_TAG = "value", "range"
ValueOrRange = Annotated[
    Annotated[ScalarValue, Tag(VALUE_TAG)] | Annotated[ParamRange, Tag(RANGE_TAG)],
    Discriminator(_value_or_range_tag),
]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
