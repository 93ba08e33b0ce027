"""Scale of the similarities (one over the temperature): fixed, learned or annealed."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

ScaleMode = Literal["fixed", "learned", "annealed"]

# NormFace keeps its learned scale above this; below it a softmax over cosines is uniform.
MIN_LEARNED_SCALE = 0.01


class SimilarityScale(nn.Module):
    """The factor in front of the similarities (one over the temperature).

    Args:
        value: Scale at the end of training; the initial value of a learned scale.
        mode: "fixed"; "learned" as in NormFace, stored as a logarithm so that a step is a ratio
            and the scale stays positive; "annealed" rises geometrically from `value / ratio` at
            the start of training to `value` at its end.
        ratio: Initial temperature of an annealed scale, relative to the final one.
        param: Name of the hyperparameter in error messages.
    """

    def __init__(
        self,
        value: float,
        *,
        mode: ScaleMode = "fixed",
        ratio: float = 4.0,
        param: str = "scale",
    ) -> None:
        super().__init__()
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"`{param} > 0` (a finite number) must hold, but got {value}")
        if mode not in ("fixed", "learned", "annealed"):
            raise ValueError(
                f"`temperature_mode` must be fixed, learned or annealed, but got {mode!r}"
            )
        if not ratio >= 1:
            raise ValueError(f"`anneal_ratio >= 1` must hold, but got {ratio}")
        self.value, self.mode, self.ratio = value, mode, ratio
        self._progress = 0.0
        if mode == "learned":
            self.log_scale = nn.Parameter(torch.tensor(math.log(value)))

    def set_progress(self, fraction: float) -> None:
        """Set the completed fraction of the training, 0 to 1."""
        self._progress = min(max(fraction, 0.0), 1.0)

    def forward(self) -> Tensor | float:
        """Return the current scale: a number, or a tensor with gradient if learned."""
        if self.mode == "learned":
            scale: Tensor = self.log_scale.exp().clamp(min=MIN_LEARNED_SCALE)
            return scale
        if self.mode == "annealed":
            return float(self.value * self.ratio ** (self._progress - 1.0))
        return self.value
