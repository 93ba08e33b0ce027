"""Which losses of a study are the same function under different names, trained identically?

Only then is the gap between them the noise of the study. Two names of the same function that differ
in a training hyperparameter (batch size, embedding dimension, a searched pooling), in the range of
their scale or margin, or in the initialisation of their proxies are two different set-ups: they are
ranked, and the gap between them measures the effect of the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from optuna.distributions import BaseDistribution

from search_spaces.equivalence import (
    describe_proxy_init,
    function_params,
    function_ranges,
    group_equivalent_losses,
)
from search_spaces.space import ParamValue, SearchSpace, describe_distribution
from trainables.config import TrainingSettings


class DifferentlyTrainedPair(NamedTuple):
    """Two names of the same function that are trained differently, and the difference."""

    loss: str
    other: str
    difference: str


def find_equivalent_losses(spaces: Mapping[str, SearchSpace]) -> list[tuple[str, ...]]:
    """Return groups of losses that are the same function and are trained identically."""
    groups = []
    for group in _group_by_function(spaces):
        remaining = list(group)
        while remaining:
            first = spaces[remaining[0]]
            alike = tuple(n for n in remaining if not _describe_differences(first, spaces[n]))
            remaining = [n for n in remaining if n not in alike]
            if len(alike) > 1:
                groups.append(alike)
    return groups


def find_differently_trained_pairs(
    spaces: Mapping[str, SearchSpace],
) -> list[DifferentlyTrainedPair]:
    """Return pairs of losses that are the same function but are trained differently."""
    pairs = [pair for group in _group_by_function(spaces) for pair in combinations(group, 2)]
    described = [
        DifferentlyTrainedPair(a, b, _describe_differences(spaces[a], spaces[b])) for a, b in pairs
    ]
    return [pair for pair in described if pair.difference]


def _group_by_function(spaces: Mapping[str, SearchSpace]) -> list[tuple[str, ...]]:
    fixed = {loss: space.fixed for loss, space in spaces.items()}
    searched = {loss: list(space.searched_params) for loss, space in spaces.items()}
    return group_equivalent_losses(list(spaces), fixed, searched)


def _describe_differences(a: SearchSpace, b: SearchSpace) -> str:
    """Describe what differs besides the names: `batch_size 32 and 64`; empty if nothing does."""
    one, other = _training_conditions(a), _training_conditions(b)
    names = dict.fromkeys([*one, *other])
    return ", ".join(
        f"{name} {_format_condition(one.get(name))} and {_format_condition(other.get(name))}"
        for name in names
        if one.get(name) != other.get(name)
    )


def _training_conditions(space: SearchSpace) -> dict[str, ParamValue | BaseDistribution]:
    """Return how a function is searched and trained: values and ranges under shared names."""
    own = function_params(space.loss)
    params = {**vars(TrainingSettings()), **space.fixed, **space.distributions}
    return {
        **{name: value for name, value in params.items() if name not in own},
        **function_ranges(space.loss, space.distributions),
        "proxy initialisation": describe_proxy_init(space.loss),
    }


def _format_condition(condition: ParamValue | BaseDistribution | None) -> str:
    if isinstance(condition, BaseDistribution):
        return f"searched in {describe_distribution(condition)}"
    if condition is None:
        return "unset"
    return f"{condition:g}" if isinstance(condition, float) else str(condition)
