"""Input encoding: how hyperparameters, epoch and jump become the columns of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from study.analyses.surrogate.observations import FloatArray


@dataclass(frozen=True)
class ResponseDiscontinuity:
    """A position on the scale of one hyperparameter at which the response jumps.

    Args:
        param: Index of the hyperparameter.
        position: Position in the unit interval.
    """

    param: int
    position: float


@dataclass(frozen=True)
class InputEncoding:
    """Columns of a model: numeric hyperparameters as they are, choices one-hot.

    Columns share a length scale in groups: one group per hyperparameter, one for log(epoch) and,
    with a jump, one for the side of the jump.
    """

    columns: tuple[int, ...]
    levels: tuple[float | None, ...]
    n_params: int
    jump: ResponseDiscontinuity | None = None

    @classmethod
    def from_distributions(
        cls, distributions: Sequence[BaseDistribution], jump: ResponseDiscontinuity | None = None
    ) -> InputEncoding:
        """Return the encoding of hyperparameters with these distributions."""
        columns: list[int] = []
        levels: list[float | None] = []
        for j, d in enumerate(distributions):
            if isinstance(d, CategoricalDistribution) and len(d.choices) > 2:
                k = len(d.choices)
                columns += [j] * k
                levels += [(i + 0.5) / k for i in range(k)]
            else:
                columns.append(j)
                levels.append(None)
        return cls(tuple(columns), tuple(levels), len(distributions), jump)

    def __call__(self, units: FloatArray, epochs: FloatArray, full: float) -> FloatArray:
        """Return inputs, rows x columns: hyperparameters, log(epoch / full), side of the jump."""
        out = [
            units[:, j] if level is None else (np.abs(units[:, j] - level) < 1e-9) * np.sqrt(0.5)
            for j, level in zip(self.columns, self.levels, strict=True)
        ]
        # The last epoch maps to 0; a distance of one is a factor of e^2.5 in training length.
        out.append(np.log(np.maximum(epochs, 0.5) / full) / 2.5)
        if self.jump is not None:
            out.append((units[:, self.jump.param] > self.jump.position).astype(np.float64))
        return np.stack(out, axis=1)

    @property
    def n_groups(self) -> int:
        """Number of length scales."""
        return self.n_params + (1 if self.jump is None else 2)

    @property
    def column_groups(self) -> np.ndarray:
        """Length-scale group of each column."""
        rest = range(self.n_params, self.n_groups)
        return np.array([*self.columns, *rest], dtype=np.int64)

    def columns_in_group(self, group: int) -> np.ndarray:
        """Return the columns of one length-scale group."""
        return np.flatnonzero(self.column_groups == group)
