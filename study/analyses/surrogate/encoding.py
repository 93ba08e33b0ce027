"""Where does a trial lie for a model: which columns, and on which side of a cliff?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from study.analyses.samples import Array


@dataclass(frozen=True)
class Cliff:
    """A place on one knob's scale where the response jumps: training fails beyond it."""

    knob: int
    place: float


@dataclass(frozen=True)
class Encoding:
    """Columns of a model: numbers as they are, a choice as one column per value.

    Columns share a length scale in groups: one per knob, one for log(epoch), and with a cliff one
    more for the side of it.
    """

    columns: tuple[int, ...]
    levels: tuple[float | None, ...]
    knobs: int
    cliff: Cliff | None = None

    @classmethod
    def of(cls, distributions: Sequence[BaseDistribution], cliff: Cliff | None = None) -> Encoding:
        """The columns of knobs with these ranges."""
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
        return cls(tuple(columns), tuple(levels), len(distributions), cliff)

    def __call__(self, units: Array, epochs: Array, full: float) -> Array:
        """Inputs, rows x columns: the knobs, log(epoch / full), and the side of the cliff."""
        out = [
            units[:, j] if level is None else (np.abs(units[:, j] - level) < 1e-9) * np.sqrt(0.5)
            for j, level in zip(self.columns, self.levels, strict=True)
        ]
        # log(full) maps to 0; one unit of length is a factor e^2.5 of training.
        out.append(np.log(np.maximum(epochs, 0.5) / full) / 2.5)
        if self.cliff is not None:
            out.append((units[:, self.cliff.knob] > self.cliff.place).astype(np.float64))
        return np.stack(out, axis=1)

    @property
    def groups(self) -> int:
        """How many length scales there are."""
        return self.knobs + (1 if self.cliff is None else 2)

    @property
    def group_of(self) -> np.ndarray:
        """Length-scale group of each column."""
        rest = range(self.knobs, self.groups)
        return np.array([*self.columns, *rest], dtype=np.int64)

    def columns_of(self, group: int) -> np.ndarray:
        """Columns of one length-scale group."""
        return np.flatnonzero(self.group_of == group)
