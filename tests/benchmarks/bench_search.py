"""After how many training epochs does our search reach what the stock set-up ends with?

python -m tests.benchmarks.bench_search [--quick]

Both search the same table of real trials (`record_trials.py`): a proposal is answered by the
recorded learning curve of the nearest grid point, so a search costs seconds and ten seeds are few.
Stock: OptunaSearch as Tune ships it, every trial at full length; and the same with Tune's
ASHAScheduler at its defaults. Ours: the ledger with a study file's defaults. Trials that run at
once take turns epoch by epoch.

Each trial of the table was trained with one seed, so its best point is partly the luckiest one. The
epochs to come within one seed's standard deviation of the stock best are given, too.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution

from search_spaces.scale import to_unit
from search_spaces.space import Space
from study.table import State
from tests.benchmarks.record_trials import EPOCHS, LEVELS, SEEDS_TABLE, TABLE
from tests.benchmarks.recording import write_result

SLOTS = 4
Best = list[tuple[int, float]]
"""Epochs spent, best score of a completed trial until then."""


class Recorded:
    """The table as a function of a point."""

    def __init__(self, space: Space) -> None:
        self._distributions = space.distributions
        with TABLE.open(encoding="utf-8", newline="") as file:
            rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
        count = len(LEVELS)
        self._curves = [row[count:] for row in rows]
        self._grid = np.array([self._unit(dict(zip(LEVELS, row, strict=False))) for row in rows])
        self.best = max(curve[-1] for curve in self._curves if len(curve) == EPOCHS)
        with SEEDS_TABLE.open(encoding="utf-8", newline="") as file:
            self.noise = statistics.stdev(float(row[0]) for row in list(csv.reader(file))[1:])

    def curve(self, point: Mapping[str, Any]) -> list[float]:
        """The learning curve of the nearest point."""
        gaps = ((self._grid - np.array(self._unit(point))) ** 2).sum(axis=1)
        return self._curves[int(gaps.argmin())]

    def _unit(self, point: Mapping[str, Any]) -> list[float]:
        return [float(to_unit(d, [point[k]])[0]) for k, d in self._distributions.items()]


def ours(table: Recorded, plan: Any, folder: Path) -> Best:
    """Drive a ledger on the table."""
    from study.jobs import Outcome
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    ledger = Ledger(plan, Record(folder, plan.spaces, writable=True))
    live: dict[str, tuple[Any, list[float], int]] = {}
    spent, best, found = 0, -math.inf, Best()
    while True:
        while len(live) < SLOTS and (job := ledger.next_job()) is not None:
            live[job.trial] = (job, table.curve(job.values), 0)
        if not live:
            return found
        for trial, (job, curve, done) in list(live.items()):
            if done >= len(curve):
                ledger.end(trial, Outcome("diverged", done, math.nan))
                del live[trial]
                continue
            spent, score = spent + 1, curve[done]
            stop = ledger.report(trial, done + 1, score)
            live[trial] = (job, curve, done + 1)
            if stop or done + 1 == EPOCHS:
                state: State = "finished" if done + 1 == EPOCHS else "stopped"
                ledger.end(trial, Outcome(state, done + 1, score))
                del live[trial]
                if state == "finished":
                    best = max(best, score)
            found.append((spent, best))


def stock(table: Recorded, space: Space, trials: int, *, seed: int, asha: bool) -> Best:
    """Drive Tune's own searcher (and scheduler) on the table."""
    import optuna
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = OptunaSearch(seed=seed, metric="score", mode="max")
    ranges = {
        name: (tune.loguniform if d.log else tune.uniform)(d.low, d.high)
        for name, d in space.distributions.items()
        if isinstance(d, FloatDistribution)
    }
    search.set_search_properties("score", "max", ranges)
    scheduler = ASHAScheduler(metric="score", mode="max", max_t=EPOCHS)
    live: dict[str, tuple[list[float], int]] = {}
    asked, spent, best, found = 0, 0, -math.inf, Best()
    while asked < trials or live:
        while len(live) < SLOTS and asked < trials:
            point = search.suggest(f"t{asked}")
            live[f"t{asked}"] = (table.curve(point), 0)
            if asha:
                scheduler.on_trial_add(None, SimpleNamespace(trial_id=f"t{asked}"))
            asked += 1
        for trial, (curve, done) in list(live.items()):
            if done >= len(curve):
                search.on_trial_complete(trial, error=True)
                del live[trial]
                continue
            spent, result = spent + 1, {"score": curve[done], "training_iteration": done + 1}
            live[trial] = (curve, done + 1)
            search.on_trial_result(trial, result)
            handle = SimpleNamespace(trial_id=trial)
            low = asha and (scheduler.on_trial_result(None, handle, result) == TrialScheduler.STOP)
            if low or done + 1 == EPOCHS:
                search.on_trial_complete(trial, result)
                del live[trial]
                if done + 1 == EPOCHS:
                    best = max(best, curve[done])
            found.append((spent, best))
    return found


def reach(found: Best, goal: float) -> float:
    """Epochs until the goal was reached; infinite when it never was."""
    return next((float(spent) for spent, best in found if best >= goal), math.inf)


def compare(table: Recorded, *, trials: int, seeds: int) -> list[dict[str, float]]:
    """A row per seed."""
    from study.plan import build_plan
    from study.read_file import parse_study

    rows = []
    for seed in range(seeds):
        plan = build_plan(
            parse_study(
                {
                    "name": "s",
                    "data": "glyphs",
                    "losses": {"proxy_anchor": {"fixed": {"backbone_lr": 1e-4}}},
                    "training": {"epochs": EPOCHS},
                    "search": {"trials": trials, "seed": seed},
                }
            )
        )
        space = plan.spaces["proxy_anchor"]
        with tempfile.TemporaryDirectory() as folder:
            mine = ours(table, plan, Path(folder))
        row: dict[str, float] = {"seed": seed, "ours_best": mine[-1][1], "ours_epochs": mine[-1][0]}
        for name, asha in (("stock", False), ("stock_asha", True)):
            theirs = stock(table, space, trials, seed=seed, asha=asha)
            row[f"{name}_best"], row[f"{name}_epochs"] = theirs[-1][1], theirs[-1][0]
            row[f"share_of_{name}"] = reach(mine, theirs[-1][1]) / theirs[-1][0]
            near = reach(mine, theirs[-1][1] - table.noise)
            row[f"share_to_noise_of_{name}"] = near / theirs[-1][0]
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    return rows


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", type=int, default=60)
    options = parser.parse_args()
    from study.plan import build_plan
    from study.read_file import parse_study

    plan = build_plan(
        parse_study(
            {
                "name": "s",
                "data": "glyphs",
                "losses": {"proxy_anchor": {"fixed": {"backbone_lr": 1e-4}}},
            }
        )
    )
    table = Recorded(plan.spaces["proxy_anchor"])
    rows = compare(table, trials=options.trials, seeds=2 if options.quick else 10)
    figures = {
        name: statistics.median(row[name] for row in rows) for name in rows[0] if name != "seed"
    }
    for name, value in figures.items():
        print(f"median {name}: {value:.3f}")
    content: dict[str, Any] = {
        "trials": options.trials,
        "slots": SLOTS,
        "epochs": EPOCHS,
        "best_of_table": table.best,
        "seed_noise": table.noise,
    }
    content |= {"medians": _plain(figures), "rows": [_plain(row) for row in rows]}
    write_result("search", content, quick=options.quick)


def _plain(figures: Mapping[str, float]) -> dict[str, float | None]:
    """What was never reached is null: JSON knows no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


if __name__ == "__main__":
    main()
