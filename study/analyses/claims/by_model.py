"""What does the surrogate say about a claim on a hyperparameter?

Every function drawn from the surrogate is evaluated along the hyperparameter, with the others good.
"""

from __future__ import annotations

import numpy as np

from search_spaces.claims import BetterValue, Sensitive
from study.analyses.claims.values import ParamTest, build_claimed_grid, build_side_grid, format_side
from study.analyses.claims.verdict import (
    ClaimVerdict,
    format_difference,
    two_sided_verdict,
    undecided_verdict,
)
from study.analyses.range_cost import assess_range_cost
from study.analyses.response_curves import (
    CONFIDENCE_LEVEL,
    draw_curves,
    has_nearby_trials,
    make_param_grid,
    select_background_points,
)
from study.analyses.surrogate.observations import FloatArray
from study.analyses.surrogate.surrogate import SurrogateModel


def judge_by_model(
    model: SurrogateModel, test: ParamTest, tolerance: float, settle: str
) -> ClaimVerdict:
    """Return the verdict of a surrogate whose curves can be used."""
    others = select_background_points(model, "good")
    distribution = model.observations.distributions[model.observations.params.index(test.knob)]
    if isinstance(test, BetterValue):
        return _judge_better_value(model, test, tolerance, others, settle)
    grid = build_claimed_grid(distribution, test)
    if isinstance(grid, str):
        return undecided_verdict(grid, "Search a wider range.")
    full_grid = make_param_grid(model, test.knob)
    positions = np.concatenate([full_grid, grid])
    supported = has_nearby_trials(model.observations, test.knob, positions)
    draws = draw_curves(model, test.knob, positions, others)
    n = len(full_grid)
    if not supported[:n].any():
        return undecided_verdict(f"There are no trials along {test.knob}.", settle)
    reference = draws[:, :n][:, supported[:n]]
    if isinstance(test, Sensitive):
        flat, steep, evidence = assess_range_cost(
            reference, reference, tolerance, "the range costs"
        )
        return two_sided_verdict(steep, flat, evidence, settle, basis="model")
    if supported[n:].mean() < 0.8:
        return undecided_verdict("There are too few trials at the claimed values.", settle)
    inside = draws[:, n:][:, supported[n:]]
    flat, steep, evidence = assess_range_cost(reference, inside, tolerance, "claimed values cost")
    return two_sided_verdict(flat, steep, evidence, settle, basis="model")


def _judge_better_value(
    model: SurrogateModel, test: BetterValue, tolerance: float, others: FloatArray, settle: str
) -> ClaimVerdict:
    distribution = model.observations.distributions[model.observations.params.index(test.knob)]
    sides = []
    for side in (test.better, test.worse):
        grid = build_side_grid(distribution, test.knob, side)
        if isinstance(grid, str):
            return undecided_verdict(grid, "Search a wider range.")
        supported = has_nearby_trials(model.observations, test.knob, grid)
        if supported.mean() < 0.5:
            return undecided_verdict(f"There are too few trials at {format_side(side)}.", settle)
        sides.append(draw_curves(model, test.knob, grid[supported], others).mean(axis=1))
    return judge_gain(sides[0] - sides[1], tolerance, settle)


def judge_gain(
    gain: FloatArray, tolerance: float, settle: str, *, confidence: float = CONFIDENCE_LEVEL
) -> ClaimVerdict:
    """Return whether one side is better than the other.

    "Better" is contradicted only if it is clearly not better at all: a gain below the tolerance is
    too small to support the claim and too likely to contradict it.
    """
    better, not_better = float((gain > tolerance).mean()), float((gain <= 0).mean())
    evidence = format_difference("gain", gain, tolerance)
    return two_sided_verdict(
        better, not_better, evidence, settle, basis="model", confidence=confidence
    )
