"""What an analysis needs to know about a loss's model to answer, or to decline."""

from __future__ import annotations

from dataclasses import dataclass

from study.analyses.surrogate import Refusal, Surrogate


@dataclass(frozen=True)
class LossModel:
    """A loss's surrogate, whether its curves may be read, and the tolerance to read them with."""

    surrogate: Surrogate | Refusal
    no_curves: Refusal | None
    tolerance: float
