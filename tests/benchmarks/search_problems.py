"""Search problems of the benchmark: a table of recorded trials, and known functions.

A problem returns the learning curve of a point and the score of the point in the mean over seeds.
The recorded table is used in two ways. `nearest` returns the curve of the nearest grid point,
including its seed noise; all points of a cell score the same, so refining a point gains nothing.
`between` interpolates the curves of the surrounding grid points on the sampling scale, which gives
a continuous function. The known functions add noise, and the speed of learning depends on one of
their hyperparameters, so that learning curves cross.
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

from search_spaces.unit_scale import to_unit
from study.config.loader import parse_config
from study.config.plan import Plan
from study.config.planner import build_plan
from tests.benchmarks.record_trials import EPOCHS, LEVELS, SEEDS_TABLE, TABLE

LOSS = "proxy_anchor"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedTraining:
    """Learning curve of one simulated trial."""

    curve: list[float]
    mean: float
    """The final score without seed noise, as far as it is known."""


class SearchProblem(Protocol):
    """A function of hyperparameters with learning curves."""

    @property
    def name(self) -> str:
        """Name in the results."""

    @property
    def epochs(self) -> int:
        """Epochs of a full trial."""

    @property
    def noise(self) -> float:
        """Standard deviation between seeds."""

    @property
    def section(self) -> dict[str, Any]:
        """Section of the loss in a study file."""

    def train(self, point: Mapping[str, Any], rng: np.random.Generator) -> SimulatedTraining:
        """Return a trial at a point."""


def build_problem_plan(problem: SearchProblem, **search: Any) -> Plan:
    """Build a study of a problem with the defaults of a study file."""
    content = {
        "name": "s",
        "data": "glyphs",
        "losses": {LOSS: problem.section},
        "training": {"epochs": problem.epochs},
        "search": search,
    }
    return build_plan(parse_config(content))


def get_distributions(problem: SearchProblem) -> dict[str, BaseDistribution]:
    """Return the searched hyperparameters with their distributions."""
    return dict(build_problem_plan(problem).spaces[LOSS].distributions)


def _to_unit_point(
    distributions: Mapping[str, BaseDistribution], point: Mapping[str, Any]
) -> Array:
    return np.array([float(to_unit(d, [point[k]])[0]) for k, d in distributions.items()])


class RecordedProblem:
    """Table of recorded trials as a function of a point.

    Args:
        between: Whether to interpolate; otherwise the nearest grid point is used.
    """

    epochs = EPOCHS

    def __init__(self, *, between: bool) -> None:
        from scipy.interpolate import RegularGridInterpolator

        self.name = "between" if between else "nearest"
        self._distributions = get_distributions(self)
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
        """Section of the loss; the table was recorded on features."""
        return {"fixed": {"backbone_lr": 1e-4}}

    def train(self, point: Mapping[str, Any], rng: np.random.Generator) -> SimulatedTraining:
        """Return the recorded curve; the table includes the noise of one seed."""
        unit = np.clip(_to_unit_point(self._distributions, point), 0.0, 1.0)
        curve = [float(score) for score in self._table(unit[None])[0]]
        return SimulatedTraining(curve, curve[-1])


RANGES: Mapping[str, list[Any]] = {
    "alpha": [4.0, 128.0, "log"],
    "delta": [0.0, 0.6],
    "head_lr": [1e-5, 1e-1, "log"],
    "proxy_lr": [1e-4, 1.0, "log"],
    "backbone_lr": [1e-5, 1e-2, "log"],
    "weight_decay": [1e-6, 1e-1, "log"],
}
FIXED_LEARNING_RATES = {"head_lr": 1e-4, "proxy_lr": 1e-2, "backbone_lr": 1e-4}


@dataclass(frozen=True)
class KnownProblem:
    """A function on the unit cube, scaled so that good points are about 0.15 above the median.

    Args:
        name: Name in the results.
        response: Returns the scores of points given as rows.
        n_params: Number of hyperparameters.
        slow_param: Index of the hyperparameter on which the speed of learning depends.
        time_constants: Epochs in which the gap to the final score falls to 1/e, at both ends of
            that hyperparameter.
        epochs: Epochs of a full trial.
        noise: Standard deviation between seeds.
        initial_gap: Gap to the final score at the start.
    """

    name: str
    response: Callable[[Array], Array]
    n_params: int
    slow_param: int
    time_constants: tuple[float, float]
    epochs: int = 9
    noise: float = 0.004
    initial_gap: float = 0.3

    @property
    def section(self) -> dict[str, Any]:
        """Section of the loss: the first hyperparameters are searched, the others fixed."""
        names = list(RANGES)[: self.n_params]
        fixed = {k: v for k, v in FIXED_LEARNING_RATES.items() if k not in names}
        return {"search": {k: RANGES[k] for k in names}, "fixed": fixed}

    @cached_property
    def _distributions(self) -> dict[str, BaseDistribution]:
        return get_distributions(self)

    @cached_property
    def _spread(self) -> tuple[float, float]:
        values = self.response(np.random.default_rng(0).random((20_000, self.n_params)))
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.99])
        return float(middle), float(high - low)

    def train(self, point: Mapping[str, Any], rng: np.random.Generator) -> SimulatedTraining:
        """Return a curve towards the response, with seed noise."""
        unit = _to_unit_point(self._distributions, point)
        middle, spread = self._spread
        mean = 0.5 + 0.15 * (float(self.response(unit[None])[0]) - middle) / spread
        end = mean + self.noise * rng.standard_normal()
        time = (
            self.time_constants[0]
            + (self.time_constants[1] - self.time_constants[0]) * unit[self.slow_param]
        )
        gap = np.exp(-np.arange(1, self.epochs + 1) / time) - np.exp(-self.epochs / time)
        jitter = 0.2 * self.noise * rng.standard_normal(self.epochs)
        jitter[-1] = 0.0
        return SimulatedTraining([float(s) for s in end - self.initial_gap * gap + jitter], mean)


def _peak(centre: tuple[float, ...], width: tuple[float, ...]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(np.exp(-(((x - centre) / np.array(width)) ** 2).sum(axis=1)))


def _branin(x: Array) -> Array:
    a, b = 15 * x[:, 0] - 5, 15 * x[:, 1]
    bowl = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2
    return np.asarray(-(bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a)))


def _ridge(x: Array) -> Array:
    """Return a function of two rates that must match, with a cliff above one of them."""
    smooth = -np.abs(x[:, 0] + x[:, 1] - 1.1) - 0.6 * (x[:, 2] - 0.65) ** 2
    smooth -= 0.3 * (x[:, 3] - 0.3) ** 2
    return np.where(x[:, 1] > 0.85, smooth - 0.5, smooth)


def _ackley(x: Array) -> Array:
    """Return Ackley's function, which has many local optima."""
    y = 4 * (x - 0.37)
    far = 20 * np.exp(-0.2 * np.sqrt((y**2).mean(axis=1)))
    return np.asarray(far + np.exp(np.cos(2 * np.pi * y).mean(axis=1)))


KNOWN_PROBLEMS = (
    KnownProblem(
        "two parameters, three optima", _branin, 2, slow_param=0, time_constants=(1.0, 6.0)
    ),
    KnownProblem(
        "four parameters, a peak",
        _peak((0.7, 0.3, 0.6, 0.4), (0.3, 0.5, 0.25, 0.6)),
        4,
        2,
        (1.0, 8.0),
    ),
    KnownProblem(
        "four parameters, ridge and cliff", _ridge, 4, slow_param=1, time_constants=(1.0, 5.0)
    ),
    KnownProblem(
        "four parameters, many optima", _ackley, 4, slow_param=3, time_constants=(1.0, 3.0)
    ),
    KnownProblem(
        "five parameters, 27 epochs",
        _peak((0.7, 0.3, 0.6, 0.4, 0.2), (0.3, 0.5, 0.25, 0.6, 0.8)),
        5,
        slow_param=2,
        time_constants=(2.0, 12.0),
        epochs=27,
    ),
)
