"""How much score does a range of a hyperparameter cost?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from study.analyses.response_curves import CONFIDENCE_LEVEL
from study.analyses.surrogate.observations import FloatArray


@dataclass(frozen=True)
class RangeCost:
    """What values cost compared with the best, and how certain that is.

    The band answers two questions. `low` refers to the cost compared with one fixed alternative
    (the best of the mean curve), because the extremes of a single draw are always apart. `high`
    refers to the cost compared with the best of each draw, which is strict. The cost is therefore
    within a tolerance with 95 % exactly if `high` is, and beyond it exactly if `low` is.

    Args:
        probability_within: Probability that no value costs more than the tolerance.
        probability_beyond: Probability that one fixed value does.
        mean: Mean cost of that value compared with the fixed alternative.
        low, high: The 90 % band.
    """

    probability_within: float
    probability_beyond: float
    mean: float
    low: float
    high: float


def compute_range_cost(reference: FloatArray, inside: FloatArray, tolerance: float) -> RangeCost:
    """Return what the worst of `inside` costs compared with the best of `reference` and `inside`.

    Args:
        reference: Draws x values to compare with.
        inside: Draws x values of the range.
        tolerance: Score difference that counts as negligible.
    """
    best = np.maximum(reference.max(axis=1), inside.max(axis=1))
    cost_to_own_best = best - inside.min(axis=1)
    fixed_best = reference[:, int(reference.mean(axis=0).argmax())]
    costs = fixed_best[:, None] - inside
    cost_to_fixed_best = costs[:, int(costs.mean(axis=0).argmax())]
    return RangeCost(
        probability_within=float((cost_to_own_best <= tolerance).mean()),
        probability_beyond=float((cost_to_fixed_best > tolerance).mean()),
        mean=float(cost_to_fixed_best.mean()),
        low=float(np.quantile(cost_to_fixed_best, 1 - CONFIDENCE_LEVEL)),
        high=float(np.quantile(cost_to_own_best, CONFIDENCE_LEVEL)),
    )


def assess_range_cost(
    reference: FloatArray, inside: FloatArray, tolerance: float, what: str
) -> tuple[float, float, str]:
    """Return the probabilities that all of `inside` are within the tolerance, or that one is not.

    Args:
        what: Start of the sentence that describes the cost.

    Returns:
        Probability within, probability beyond, and a sentence with the band (see `RangeCost`) and
        both probabilities.
    """
    cost = compute_range_cost(reference, inside, tolerance)
    evidence = (
        f"{what} {cost.mean:.4f} ({cost.low:.4f} to {cost.high:.4f}); tolerance {tolerance:.4f}: "
        f"within it with {cost.probability_within:.0%} probability, "
        f"beyond it with {cost.probability_beyond:.0%}"
    )
    return cost.probability_within, cost.probability_beyond, evidence
