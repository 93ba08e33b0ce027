"""What does the model say about a claim on a knob?

On the curve with the other knobs good, in every function drawn from the surrogate.
"""

from __future__ import annotations

import numpy as np

from search_spaces.claims import BetterValue, Sensitive
from study.analyses.claimed import KnobTest, claimed_grid, side_grid, words
from study.analyses.response import SURE, background, curve_draws, grid_of, supported
from study.analyses.samples import Array
from study.analyses.surrogate import Surrogate
from study.analyses.verdicts import Judgement, either, gap, swing, undecided


def judge(model: Surrogate, test: KnobTest, tolerance: float, settle: str) -> Judgement:
    """The verdict of a model whose curves may be read."""
    others = background(model, "good")
    distribution = model.samples.distributions[model.samples.knobs.index(test.knob)]
    if isinstance(test, BetterValue):
        return _better_value(model, test, tolerance, others, settle)
    grid = claimed_grid(distribution, test)
    if isinstance(grid, str):
        return undecided(grid, "Search a wider range.")
    everywhere = grid_of(model, test.knob)
    all_places = np.concatenate([everywhere, grid])
    known = supported(model.samples, test.knob, all_places)
    draws = curve_draws(model, test.knob, all_places, others)
    n = len(everywhere)
    if not known[:n].any():
        return undecided(f"No trials along {test.knob}.", settle)
    free = draws[:, :n][:, known[:n]]
    if isinstance(test, Sensitive):
        flat, steep, evidence = swing(free, free, tolerance, "the range costs")
        return either(steep, flat, evidence, settle, basis="model")
    if known[n:].mean() < 0.8:
        return undecided("Too few trials at the claimed values.", settle)
    inside = draws[:, n:][:, known[n:]]
    flat, steep, evidence = swing(free, inside, tolerance, "claimed values cost")
    return either(flat, steep, evidence, settle, basis="model")


def _better_value(
    model: Surrogate, test: BetterValue, tolerance: float, others: Array, settle: str
) -> Judgement:
    distribution = model.samples.distributions[model.samples.knobs.index(test.knob)]
    sides = []
    for side in (test.better, test.worse):
        grid = side_grid(distribution, test.knob, side)
        if isinstance(grid, str):
            return undecided(grid, "Search a wider range.")
        known = supported(model.samples, test.knob, grid)
        if known.mean() < 0.5:
            return undecided(f"Too few trials at {words(side)}.", settle)
        sides.append(curve_draws(model, test.knob, grid[known], others).mean(axis=1))
    return of_gain(sides[0] - sides[1], tolerance, settle)


def of_gain(gain: Array, tolerance: float, settle: str, *, sure: float = SURE) -> Judgement:
    """Whether one side beats the other.

    "Better" is contradicted only when it is clearly not better at all; a gain below the tolerance
    is too small to claim and too likely to deny.
    """
    clear, none = float((gain > tolerance).mean()), float((gain <= 0).mean())
    return either(clear, none, gap("gain", gain, tolerance), settle, basis="model", sure=sure)
