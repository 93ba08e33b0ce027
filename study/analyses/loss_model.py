"""Loss model: what claims and suggested trials need to know about the surrogate of a loss."""

from __future__ import annotations

from dataclasses import dataclass

from study.analyses.surrogate.surrogate import Refusal, SurrogateModel


@dataclass(frozen=True)
class LossModel:
    """The surrogate of a loss, whether its curves can be used, and the score tolerance.

    Args:
        surrogate: Model, or why there is none.
        curve_refusal: Why the response curves cannot be used; None if they can.
        tolerance: Score difference that counts as negligible.
    """

    surrogate: SurrogateModel | Refusal
    curve_refusal: Refusal | None
    tolerance: float
