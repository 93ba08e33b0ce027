"""How sharp is the softmax: a constant, a learned number, or one that anneals?"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

ScaleMode = Literal["fixed", "learned", "annealed"]

# NormFace keeps its learned scale above this; below it a softmax over cosines says nothing.
LOWEST_LEARNED_SCALE = 0.01


class Scale(nn.Module):
    """The factor in front of the similarities (one over the temperature).

    Args:
        value: Scale at the end of training; for a learned scale, its start.
        mode: "fixed"; "learned" as in NormFace, stored as a logarithm so that a step is a ratio
            and the scale stays positive; "annealed" rises geometrically from `value / ratio` at
            the start of training to `value` at its end.
        ratio: How many times hotter an annealed temperature starts.
        knob: What a user calls it.
    """

    def __init__(
        self,
        value: float,
        *,
        mode: ScaleMode = "fixed",
        ratio: float = 4.0,
        knob: str = "scale",
    ) -> None:
        super().__init__()
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"`{knob} > 0` (a finite number) must hold, but got {value}.")
        if mode not in ("fixed", "learned", "annealed"):
            raise ValueError(
                f"`temperature_mode` must be fixed, learned or annealed, but got {mode!r}."
            )
        if not ratio >= 1:
            raise ValueError(f"`anneal_ratio >= 1` must hold, but got {ratio}.")
        self.value, self.mode, self.ratio = value, mode, ratio
        self._progress = 0.0
        if mode == "learned":
            self.log_scale = nn.Parameter(torch.tensor(math.log(value)))

    def set_progress(self, fraction: float) -> None:
        """Say how much of the training is over, 0 to 1."""
        self._progress = min(max(fraction, 0.0), 1.0)

    def forward(self) -> Tensor | float:
        """The scale now: a number, or a tensor with gradient if learned."""
        if self.mode == "learned":
            scale: Tensor = self.log_scale.exp().clamp(min=LOWEST_LEARNED_SCALE)
            return scale
        if self.mode == "annealed":
            return float(self.value * self.ratio ** (self._progress - 1.0))
        return self.value
