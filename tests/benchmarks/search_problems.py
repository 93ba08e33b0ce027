"""What searches are compared on: a table of real trials, and functions whose answer is known.

A problem answers a point with a learning curve and with the score that the point has in the mean
over seeds. Of the recorded table there are two readings. `nearest` answers with the nearest grid
point's very curve, luck included: proposals of a cell are all the same, so that refining one gains
nothing. `between` interpolates the curves of the surrounding grid points on the sampling scale, a
continuous function. The known functions add noise of their own and learn at speeds that depend on a
knob, so that their curves cross.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution

from search_spaces.scale import to_unit
from study.plan import Plan
from study.planning import build_plan
from study.read_file import parse_study
from tests.benchmarks.record_trials import EPOCHS, LEVELS, SEEDS_TABLE, TABLE

LOSS = "proxy_anchor"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Training:
    """What a point is answered with."""

    curve: list[float]
    mean: float
    """The final score without luck, as far as it is known."""


class Problem(Protocol):
    """Something to search."""

    @property
    def name(self) -> str:
        """What it is called in the results."""

    @property
    def epochs(self) -> int:
        """Length of a full trial."""

    @property
    def noise(self) -> float:
        """Deviation between seeds."""

    @property
    def section(self) -> dict[str, Any]:
        """What a study file says of the loss."""

    def train(self, point: Mapping[str, Any], rng: np.random.Generator) -> Training:
        """A trial of a point."""


def plan_of(problem: Problem, **search: Any) -> Plan:
    """A study of a problem, with a study file's defaults."""
    content = {
        "name": "s",
        "data": "glyphs",
        "losses": {LOSS: problem.section},
        "training": {"epochs": problem.epochs},
        "search": search,
    }
    return build_plan(parse_study(content))


def distributions_of(problem: Problem) -> dict[str, BaseDistribution]:
    """The knobs that are searched."""
    return dict(plan_of(problem).spaces[LOSS].distributions)


def _unit(distributions: Mapping[str, BaseDistribution], point: Mapping[str, Any]) -> Array:
    return np.array([float(to_unit(d, [point[k]])[0]) for k, d in distributions.items()])


class Recorded:
    """The table as a function of a point.

    Args:
        between: Interpolate; else the nearest grid point answers.
    """

    epochs = EPOCHS

    def __init__(self, *, between: bool) -> None:
        from scipy.interpolate import RegularGridInterpolator

        self.name = "between" if between else "nearest"
        self._distributions = distributions_of(self)
        assert list(self._distributions) == list(LEVELS)
        with TABLE.open(encoding="utf-8", newline="") as file:
            rows = np.array([[float(c) for c in row] for row in list(csv.reader(file))[1:]])
        with SEEDS_TABLE.open(encoding="utf-8", newline="") as file:
            self.noise = statistics.stdev(float(row[0]) for row in list(csv.reader(file))[1:])
        self.best = float(rows[:, -1].max())
        axes = [to_unit(self._distributions[k], v) for k, v in LEVELS.items()]
        curves = rows[:, len(LEVELS) :].reshape(*map(len, axes), EPOCHS)
        method = "linear" if between else "nearest"
        self._table = RegularGridInterpolator(axes, curves, method=method)

    @property
    def section(self) -> dict[str, Any]:
        """The table was recorded on features."""
        return {"fixed": {"backbone_lr": 1e-4}}

    def train(self, point: Mapping[str, Any], rng: np.random.Generator) -> Training:
        """The recorded curve; the table holds its own luck."""
        unit = np.clip(_unit(self._distributions, point), 0.0, 1.0)
        curve = [float(score) for score in self._table(unit[None])[0]]
        return Training(curve, curve[-1])


RANGES: Mapping[str, list[Any]] = {
    "alpha": [4.0, 128.0, "log"],
    "delta": [0.0, 0.6],
    "head_lr": [1e-5, 1e-1, "log"],
    "proxy_lr": [1e-4, 1.0, "log"],
    "backbone_lr": [1e-5, 1e-2, "log"],
    "weight_decay": [1e-6, 1e-1, "log"],
}
ELSEWHERE = {"head_lr": 1e-4, "proxy_lr": 1e-2, "backbone_lr": 1e-4}


@dataclass(frozen=True)
class Known:
    """A response in the unit cube, scaled so that good points are some 0.15 above the median.

    Args:
        response: Score of rows of positions.
        knobs: How many.
        slow: The knob on which the speed of learning depends.
        times: Epochs in which the gap to the end falls to 1/e, at both ends of that knob.
        lag: The gap at the start.
    """

    name: str
    response: Callable[[Array], Array]
    knobs: int
    slow: int
    times: tuple[float, float]
    epochs: int = 9
    noise: float = 0.004
    lag: float = 0.3

    @property
    def section(self) -> dict[str, Any]:
        """The first knobs are searched, the others fixed."""
        names = list(RANGES)[: self.knobs]
        fixed = {k: v for k, v in ELSEWHERE.items() if k not in names}
        return {"search": {k: RANGES[k] for k in names}, "fixed": fixed}

    @cached_property
    def _distributions(self) -> dict[str, BaseDistribution]:
        return distributions_of(self)

    @cached_property
    def _spread(self) -> tuple[float, float]:
        values = self.response(np.random.default_rng(0).random((20_000, self.knobs)))
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.99])
        return float(middle), float(high - low)

    def train(self, point: Mapping[str, Any], rng: np.random.Generator) -> Training:
        """A curve towards the response, with a seed's luck."""
        unit = _unit(self._distributions, point)
        middle, spread = self._spread
        mean = 0.5 + 0.15 * (float(self.response(unit[None])[0]) - middle) / spread
        end = mean + self.noise * rng.standard_normal()
        time = self.times[0] + (self.times[1] - self.times[0]) * unit[self.slow]
        gap = np.exp(-np.arange(1, self.epochs + 1) / time) - np.exp(-self.epochs / time)
        jitter = 0.2 * self.noise * rng.standard_normal(self.epochs)
        jitter[-1] = 0.0
        return Training([float(s) for s in end - self.lag * gap + jitter], mean)


def _peak(centre: tuple[float, ...], width: tuple[float, ...]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(np.exp(-(((x - centre) / np.array(width)) ** 2).sum(axis=1)))


def _branin(x: Array) -> Array:
    a, b = 15 * x[:, 0] - 5, 15 * x[:, 1]
    bowl = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2
    return np.asarray(-(bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a)))


def _ridge(x: Array) -> Array:
    """Two rates that must match, and a cliff above one of them."""
    smooth = -np.abs(x[:, 0] + x[:, 1] - 1.1) - 0.6 * (x[:, 2] - 0.65) ** 2
    smooth -= 0.3 * (x[:, 3] - 0.3) ** 2
    return np.where(x[:, 1] > 0.85, smooth - 0.5, smooth)


def _ackley(x: Array) -> Array:
    """Many local optima."""
    y = 4 * (x - 0.37)
    far = 20 * np.exp(-0.2 * np.sqrt((y**2).mean(axis=1)))
    return np.asarray(far + np.exp(np.cos(2 * np.pi * y).mean(axis=1)))


KNOWN = (
    Known("two knobs, three optima", _branin, 2, slow=0, times=(1.0, 6.0)),
    Known(
        "four knobs, a peak", _peak((0.7, 0.3, 0.6, 0.4), (0.3, 0.5, 0.25, 0.6)), 4, 2, (1.0, 8.0)
    ),
    Known("four knobs, ridge and cliff", _ridge, 4, slow=1, times=(1.0, 5.0)),
    Known("four knobs, many optima", _ackley, 4, slow=3, times=(1.0, 3.0)),
    Known(
        "five knobs, 27 epochs",
        _peak((0.7, 0.3, 0.6, 0.4, 0.2), (0.3, 0.5, 0.25, 0.6, 0.8)),
        5,
        slow=2,
        times=(2.0, 12.0),
        epochs=27,
    ),
)
