"""Which losses of a study are one function under several names, searched and trained alike?

Only then is their gap the noise of the study. Two names of one function that differ in a training
knob (batch size, embedding dimension, a searched pooling), in the range of their scale or margin,
or in how their proxies start are two set-ups like any others: they are ranked, and their gap
measures what the difference does.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from optuna.distributions import BaseDistribution

from search_spaces.aliases import aliases, function_knobs, function_ranges, start_of_proxies
from search_spaces.space import Space, Value, describe
from trainables.settings import Settings


class Apart(NamedTuple):
    """Two names of one function that are not trained alike, and how they differ."""

    loss: str
    other: str
    why: str


def one_function(spaces: Mapping[str, Space]) -> list[tuple[str, ...]]:
    """Groups of two or more losses that are one function and train alike."""
    groups = []
    for group in _names_of_one(spaces):
        left = list(group)
        while left:
            alike = tuple(n for n in left if not _differences(spaces[left[0]], spaces[n]))
            left = [n for n in left if n not in alike]
            if len(alike) > 1:
                groups.append(alike)
    return groups


def trained_apart(spaces: Mapping[str, Space]) -> list[Apart]:
    """Pairs of losses that are one function but do not train alike."""
    pairs = [pair for group in _names_of_one(spaces) for pair in combinations(group, 2)]
    found = [Apart(a, b, _differences(spaces[a], spaces[b])) for a, b in pairs]
    return [pair for pair in found if pair.why]


def _names_of_one(spaces: Mapping[str, Space]) -> list[tuple[str, ...]]:
    fixed = {loss: space.fixed for loss, space in spaces.items()}
    searched = {loss: list(space.searched) for loss, space in spaces.items()}
    return aliases(list(spaces), fixed, searched)


def _differences(a: Space, b: Space) -> str:
    """What differs beyond the names, as words: `batch_size 32 and 64`; empty if nothing does."""
    one, other = _conditions(a), _conditions(b)
    names = dict.fromkeys([*one, *other])
    return ", ".join(
        f"{name} {_shown(one.get(name))} and {_shown(other.get(name))}"
        for name in names
        if one.get(name) != other.get(name)
    )


def _conditions(space: Space) -> dict[str, Value | BaseDistribution]:
    """How a study searches and trains a function: values and ranges that its names share."""
    own = function_knobs(space.loss)
    knobs = {**vars(Settings()), **space.fixed, **space.distributions}
    return {
        **{name: how for name, how in knobs.items() if name not in own},
        **function_ranges(space.loss, space.distributions),
        "start of the proxies": start_of_proxies(space.loss),
    }


def _shown(how: Value | BaseDistribution | None) -> str:
    if isinstance(how, BaseDistribution):
        return f"searched in {describe(how)}"
    return "unset" if how is None else f"{how:g}" if isinstance(how, float) else str(how)
