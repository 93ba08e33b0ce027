"""Synthetic studies of known response functions, with sampling, pruning and repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
import pandas as pd
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from scipy.stats import qmc

from search_spaces.claims import PaperClaim
from search_spaces.space import Hyperparameter, PublishedPoint, SearchSpace
from search_spaces.unit_scale import from_unit
from study.trials.table import METRIC_PREFIX, PARAM_PREFIX, TrialTable

Array = NDArray[np.float64]
Response = Callable[[Array], Array]


@dataclass(frozen=True)
class SyntheticLoss:
    """Search space of a loss, its final score as a function of unit positions, and its noise.

    Args:
        noise: Standard deviation between seeds.
        lag: Difference between the final score and that at epoch zero; it decays with `tau` epochs.
        diverges: Probability that a trial at given positions diverges.
    """

    space: SearchSpace
    response: Response
    noise: float = 0.005
    lag: float = 0.25
    tau: float = 6.0
    diverges: Callable[[Array], Array] | None = None
    seconds: float = 1.0
    test_gap: float = -0.02
    extra: Mapping[str, float] = field(default_factory=dict)


def make_unit_space(
    loss: str, names: Sequence[str], *, claims: tuple[PaperClaim, ...] = (), published: float = 0.5
) -> SearchSpace:
    """Return a space of hyperparameters on [0, 1], whose values equal their unit positions."""
    return SearchSpace(
        loss=loss,
        paper="synthetic",
        scientific={n: Hyperparameter(FloatDistribution(0.0, 1.0), n, "test") for n in names},
        published=(PublishedPoint("synthetic", dict.fromkeys(names, published)),),
        claims=claims,
    )


@dataclass(frozen=True)
class SyntheticPlan:
    """Trials that a synthetic study runs for each loss.

    With `tpe`, Optuna's TPE suggests the Bayesian trials and sees pruned trials as pruned. Without
    it, a fast approximation samples around the best points.
    """

    trials: int = 60
    sobol_share: float = 0.4
    bayes: bool = True
    stop: bool = True
    epochs: int = 27
    repeats: int = 3
    repeated_points: int = 3
    confirm: int = 0
    sweep: Mapping[str, Sequence[float]] = field(default_factory=dict)
    sweep_seeds: int = 3
    running: int = 0
    tpe: bool = False


class _LossSimulation:
    """Simulated trials of one loss, including pruning, repeats, sweeps and confirmation."""

    def __init__(self, problem: SyntheticLoss, plan: SyntheticPlan, seed: int) -> None:
        self.problem, self.plan = problem, plan
        self.rng = np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.rungs: dict[int, list[float]] = {}
        self.units: list[Array] = []
        self.final_scores: list[float] = []
        self.study: optuna.Study | None = None
        if plan.tpe:
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, n_startup_trials=1, warn_independent_sampling=False
            )
            self.study = optuna.create_study(direction="maximize", sampler=sampler)

    def run_trial(self, unit: Array, origin: str, **extra: Any) -> float:
        problem, plan, space = self.problem, self.plan, self.problem.space
        values = {
            k: from_unit(d, u) for (k, d), u in zip(space.distributions.items(), unit, strict=True)
        }
        name = f"{space.loss}-{len(self.rows):04d}"
        seed = extra.pop("seed", 0)
        state, done = "finished", plan.epochs
        diverges = problem.diverges
        if diverges is not None and self.rng.random() < float(diverges(unit[None])[0]):
            state, done = "diverged", int(self.rng.integers(1, plan.epochs))
        end = float(problem.response(unit[None])[0]) + problem.noise * self.rng.standard_normal()
        if extra.get("split") == "test":
            end += problem.test_gap
        scores = end - problem.lag * (
            np.exp(-np.arange(1, plan.epochs + 1) / problem.tau)
            - np.exp(-plan.epochs / problem.tau)
        )
        scores = scores + 0.2 * problem.noise * self.rng.standard_normal(plan.epochs)
        scores[-1] = end
        for rung in (3, 9):
            if state != "finished" or rung >= plan.epochs:
                break
            seen = self.rungs.setdefault(rung, [])
            seen.append(float(scores[rung - 1]))
            if plan.stop and origin == "bayes" and scores[rung - 1] < np.quantile(seen, 2 / 3):
                state, done = "stopped", rung
        if extra.pop("running", False):
            state, done = "running", max(plan.epochs // 3, 1)
        score = float(scores[done - 1]) if state != "diverged" else float("nan")
        metrics = {METRIC_PREFIX + "map_at_r": score, METRIC_PREFIX + "recall_at_1": score + 0.1}
        metrics |= {METRIC_PREFIX + k: v + score for k, v in problem.extra.items()}
        row = {
            "trial": name,
            "loss": space.loss,
            "number": len(self.rows),
            "origin": origin,
            "state": state,
            "split": "validation",
            "point": str(sorted(values.items())),
            "seed": seed,
            "anchor": "",
            "swept": "",
            "epochs": done,
            "score": score,
            "score_std": float("nan"),
            "seconds": problem.seconds * done,
            "started": 1.7e9 + 10.0 * len(self.rows),
            "host": "node-0",
            "error": "loss is nan" if state == "diverged" else "",
        }
        self.rows.append(
            {**row, **extra, **{PARAM_PREFIX + k: v for k, v in values.items()}, **metrics}
        )
        shown = done - 1 if state == "diverged" else done
        self.curves += [
            {
                "trial": name,
                "epoch": t + 1,
                "score": float(scores[t]),
                METRIC_PREFIX + "map_at_r": float(scores[t]),
            }
            for t in range(shown)
        ]
        if self.study is not None and state in ("finished", "stopped"):
            is_complete = state == "finished"
            self.study.add_trial(
                optuna.create_trial(
                    params=values,
                    distributions=space.distributions,
                    value=score if is_complete else None,
                    intermediate_values={} if is_complete else {done: score},
                    state=optuna.trial.TrialState["COMPLETE" if is_complete else "PRUNED"],
                )
            )
        if state != "diverged":
            self.units.append(unit)
            self.final_scores.append(score if state == "finished" else -1e9 + score)
        return score

    def run_all_trials(self) -> None:
        plan, space = self.plan, self.problem.space
        d = len(space.distributions)
        published = self._get_published_unit()
        if published is not None:
            self.run_trial(published, "published")
        n_sobol = max(round(plan.sobol_share * plan.trials), 1)
        sobol = qmc.Sobol(d, seed=self.rng).random(n_sobol)
        first = len(self.units)
        for unit in sobol:
            self.run_trial(unit, "sobol")
        for _ in range(plan.trials - n_sobol if plan.bayes else 0):
            self.run_trial(self._suggest_unit(d), "bayes")
        if plan.repeats > 1 and self.units:
            best = self.units[int(np.argmax(self.final_scores))]
            points = [self.units[0], best, *self.units[first : first + plan.repeated_points - 2]]
            for point in points[: plan.repeated_points]:
                for s in range(1, plan.repeats):
                    self.run_trial(point, "repeat", seed=s)
        self._run_sweeps(published)
        if plan.confirm and self.units:
            best = self.units[int(np.argmax(self.final_scores))]
            for point in [best] if published is None else [best, published]:
                for s in range(plan.confirm):
                    self.run_trial(point, "confirm", seed=100 + s, split="test")
        for unit in self.rng.random((plan.running, d)):
            self.run_trial(unit, "bayes", running=True)

    def _get_published_unit(self) -> Array | None:
        space = self.problem.space
        return self._to_unit(space.published[0].values) if space.published else None

    def _to_unit(self, values: Mapping[str, Any]) -> Array:
        from study.analyses.surrogate.observations import point_to_unit_cube

        space = self.problem.space
        names = list(space.distributions)
        return point_to_unit_cube(values, names, list(space.distributions.values()))

    def _suggest_unit(self, d: int) -> Array:
        """Suggest a point, mostly close to one of the best, as a Bayesian sampler does."""
        if self.study is not None:
            asked = self.study.ask(dict(self.problem.space.distributions))
            # `run_trial` adds the result as another trial, which has the right state.
            self.study.tell(asked, state=optuna.trial.TrialState.FAIL)
            return self._to_unit(asked.params)
        if not self.units or self.rng.random() < 0.15:
            return self.rng.random(d)
        order = np.argsort(self.final_scores)[::-1][: max(len(self.final_scores) // 6, 2)]
        centre = self.units[int(self.rng.choice(order))]
        return np.clip(centre + 0.12 * self.rng.standard_normal(d), 0.0, 1.0)

    def _run_sweeps(self, published: Array | None) -> None:
        if published is None:
            return
        names = list(self.problem.space.distributions)
        for param, positions in self.plan.sweep.items():
            if param not in names:
                continue
            for position in positions:
                unit = published.copy()
                unit[names.index(param)] = position
                for s in range(self.plan.sweep_seeds):
                    self.run_trial(unit, "sweep", seed=s, anchor="published", swept=param)


def make_table(
    problems: Sequence[SyntheticLoss],
    plan: SyntheticPlan | None = None,
    *,
    seed: int = 0,
    study: str = "made-up",
    tolerance: float | None = None,
) -> TrialTable:
    """Return the table of a study of synthetic losses."""
    plan = plan or SyntheticPlan()
    runs = [_LossSimulation(p, plan, seed=1000 * seed + i) for i, p in enumerate(problems)]
    for run in runs:
        run.run_all_trials()
    trials = pd.DataFrame([row for run in runs for row in run.rows])
    curves = pd.DataFrame([row for run in runs for row in run.curves])
    if curves.empty:
        curves = pd.DataFrame(columns=["trial", "epoch", "score"])
    return TrialTable(
        study=study,
        trials=trials,
        curves=curves,
        spaces={p.space.loss: p.space for p in problems},
        protocol={
            "objective": "map_at_r",
            "epochs": plan.epochs,
            "folds": 1,
            "dataset": "made-up",
            "backbone": "none",
            "tolerance": tolerance,
        },
        baseline={"validation": {"map_at_r": 0.21, "recall_at_1": 0.3}},
    )


def make_additive_response(
    weights: Sequence[float], *, best: float = 0.7, top: float = 0.6
) -> Response:
    """Return a sum of parabolas; hyperparameter i costs weight i at the end far from `best`."""
    scale = np.array(weights) / max(best, 1 - best) ** 2

    def response(units: Array) -> Array:
        return np.asarray(top - ((units[:, : len(scale)] - best) ** 2) @ scale)

    return response


def ishigami_response(units: Array) -> Array:
    """Return the Ishigami function of three hyperparameters."""
    x = (2 * units - 1) * np.pi
    return np.asarray(
        np.sin(x[:, 0]) + 7.0 * np.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * np.sin(x[:, 0])
    )


ISHIGAMI_FIRST = (0.3139, 0.4424, 0.0)
ISHIGAMI_TOTAL = (0.5576, 0.4424, 0.2437)


def make_sobol_g_response(a: Sequence[float]) -> tuple[Response, Array, Array]:
    """Return Sobol's G function with its first-order and total indices."""
    coefficients = np.array(a)

    def response(units: Array) -> Array:
        return np.asarray(
            np.prod((np.abs(4 * units - 2) + coefficients) / (1 + coefficients), axis=1)
        )

    parts = 1 / (3 * (1 + coefficients) ** 2)
    whole = np.prod(1 + parts) - 1
    total = parts * np.prod(1 + parts) / (1 + parts) / whole
    return response, parts / whole, total
