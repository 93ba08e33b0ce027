"""Conversion between hyperparameter values and positions in [0, 1] on the sampling scale.

Every analysis works in the unit cube of the *sampling* scale: a logarithmic hyperparameter is
uniform in its logarithm, a choice in its index. Importances integrated on the raw scale of a
logarithmic hyperparameter would be wrong.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.space import ParamValue


def to_unit(distribution: BaseDistribution, values: ArrayLike) -> NDArray[np.float64]:
    """Return the positions of values in [0, 1]; choices are at the middles of equal cells."""
    if isinstance(distribution, CategoricalDistribution):
        choices = list(distribution.choices)
        index = np.array([choices.index(v) for v in np.asarray(values, dtype=object).ravel()])
        return (index + 0.5) / len(choices)
    low, high = _transformed_bounds(distribution)
    numbers = np.asarray(values, dtype=np.float64)
    if high == low:
        return np.full_like(numbers, 0.5)
    return (_transform_values(distribution, numbers) - low) / (high - low)


def from_unit(distribution: BaseDistribution, position: float) -> ParamValue:
    """Return the value at a position in [0, 1]; positions outside are clipped."""
    position = min(max(float(position), 0.0), 1.0)
    if isinstance(distribution, CategoricalDistribution):
        choices = distribution.choices
        return choices[min(int(position * len(choices)), len(choices) - 1)]  # type: ignore[return-value]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = _transformed_bounds(distribution)
    number = low + position * (high - low)
    if distribution.log:
        number = math.exp(number)
    if isinstance(distribution, IntDistribution):
        steps = round((number - distribution.low) / distribution.step)
        return int(
            min(
                max(distribution.low + steps * distribution.step, distribution.low),
                distribution.high,
            )
        )
    if distribution.step is not None:
        number = (
            distribution.low
            + round((number - distribution.low) / distribution.step) * distribution.step
        )
    return float(min(max(number, distribution.low), distribution.high))


def _transformed_bounds(distribution: BaseDistribution) -> tuple[float, float]:
    """Return the range on the sampling scale; integers extend half a step to each side."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if isinstance(distribution, IntDistribution):
        low, high = low - 0.5 * distribution.step, high + 0.5 * distribution.step
    return (math.log(low), math.log(high)) if distribution.log else (low, high)


def _transform_values(
    distribution: BaseDistribution, numbers: NDArray[np.float64]
) -> NDArray[np.float64]:
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return np.log(numbers) if distribution.log else numbers
