"""After how many training epochs does our search reach what the stock set-up ends with?

python -m tests.benchmarks.bench_search [--quick] [--only nearest|between|known]

Both search the same problems (`search_problems.py`): a table of real trials (`record_trials.py`),
so that a search costs seconds and ten seeds are few, and functions of another kind, on which a
default that only suits the table would show. Stock: OptunaSearch as Tune ships it, every trial at
full length; and the same with Tune's ASHAScheduler at its defaults. Ours: the ledger with a study
file's defaults; the epochs of its repeated seeds count, too. Trials that run at once take turns.

A search has reached a score when its incumbent, the best finished trial, has that score in the mean
over seeds, as far as the problem knows it: a lucky seed is no merit. Each trial of the table was
trained with one seed, so its best point is partly the luckiest one; the epochs to come within one
seed's standard deviation of the stock best are given, too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution

from study.table import State
from tests.benchmarks.recording import RESULTS, write_result
from tests.benchmarks.search_problems import (
    KNOWN,
    Problem,
    Recorded,
    Training,
    distributions_of,
    plan_of,
)

SLOTS = 4


class Watch:
    """Who is the incumbent, after how many epochs?"""

    def __init__(self) -> None:
        self.spent = 0
        self._score = -math.inf
        self._found = [(0, -math.inf)]

    def finished(self, score: float, mean: float) -> None:
        """A trial of the search reached full length."""
        if score > self._score:
            self._score = score
            self._found.append((self.spent, mean))

    @property
    def best(self) -> float:
        """The incumbent's mean at the end."""
        return self._found[-1][1]

    def reach(self, goal: float) -> float:
        """Epochs until an incumbent's mean was the goal; infinite when it never was."""
        return next((float(spent) for spent, mean in self._found if mean >= goal), math.inf)


def ours(problem: Problem, *, trials: int, seed: int) -> tuple[Watch, float]:
    """Drive a ledger; what it found, and the seconds of a median decision."""
    from study.jobs import Outcome
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    plan, rng = plan_of(problem, trials=trials, seed=seed), np.random.default_rng([seed, 1])
    live: dict[str, tuple[Any, Training, int]] = {}
    watch, asking = Watch(), []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(plan, Record(Path(folder), plan.spaces, writable=True))
        while True:
            while len(live) < SLOTS:
                started = time.perf_counter()
                job = ledger.next_job()
                if job is None:
                    break
                asking.append(time.perf_counter() - started)
                live[job.trial] = (job, problem.train(job.values, rng), 0)
            if not live:
                return watch, statistics.median(asking)
            for trial, (job, training, done) in list(live.items()):
                watch.spent, score = watch.spent + 1, training.curve[done]
                stop = ledger.report(trial, done + 1, score)
                live[trial] = (job, training, done + 1)
                if stop or done + 1 == problem.epochs:
                    state: State = "finished" if done + 1 == problem.epochs else "stopped"
                    ledger.end(trial, Outcome(state, done + 1, score))
                    del live[trial]
                    if state == "finished" and job.origin != "repeat":
                        watch.finished(score, training.mean)


def stock(problem: Problem, *, trials: int, seed: int, asha: bool) -> Watch:
    """Drive Tune's own searcher (and scheduler)."""
    import optuna
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = OptunaSearch(seed=seed, metric="score", mode="max")
    ranges = {
        name: (tune.loguniform if d.log else tune.uniform)(d.low, d.high)
        for name, d in distributions_of(problem).items()
        if isinstance(d, FloatDistribution)
    }
    search.set_search_properties("score", "max", ranges)
    scheduler = ASHAScheduler(metric="score", mode="max", max_t=problem.epochs)
    rng = np.random.default_rng([seed, 2])
    live: dict[str, tuple[Training, int]] = {}
    asked, watch = 0, Watch()
    while asked < trials or live:
        while len(live) < SLOTS and asked < trials:
            point = search.suggest(f"t{asked}")
            live[f"t{asked}"] = (problem.train(point, rng), 0)
            if asha:
                scheduler.on_trial_add(None, SimpleNamespace(trial_id=f"t{asked}"))
            asked += 1
        for trial, (training, done) in list(live.items()):
            score = training.curve[done]
            watch.spent, result = watch.spent + 1, {"score": score, "training_iteration": done + 1}
            live[trial] = (training, done + 1)
            search.on_trial_result(trial, result)
            handle = SimpleNamespace(trial_id=trial)
            low = asha and (scheduler.on_trial_result(None, handle, result) == TrialScheduler.STOP)
            if low or done + 1 == problem.epochs:
                search.on_trial_complete(trial, result)
                del live[trial]
                if done + 1 == problem.epochs:
                    watch.finished(score, training.mean)
    return watch


def compare(problem: Problem, *, trials: int, seeds: int) -> list[dict[str, float]]:
    """A row per seed."""
    rows = []
    for seed in range(seeds):
        mine, seconds = ours(problem, trials=trials, seed=seed)
        row: dict[str, float] = {
            "seed": seed,
            "ours_best": mine.best,
            "ours_epochs": mine.spent,
            "ours_decision_ms": 1000 * seconds,
        }
        for name, asha in (("stock", False), ("stock_asha", True)):
            theirs = stock(problem, trials=trials, seed=seed, asha=asha)
            row[f"{name}_best"], row[f"{name}_epochs"] = theirs.best, theirs.spent
            row[f"share_of_{name}"] = mine.reach(theirs.best) / theirs.spent
            near = mine.reach(theirs.best - problem.noise)
            row[f"share_to_noise_of_{name}"] = near / theirs.spent
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    return rows


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of every figure but the seed."""
    return {name: statistics.median(r[name] for r in rows) for name in rows[0] if name != "seed"}


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--only", choices=("nearest", "between", "known"))
    options = parser.parse_args()
    tables = [Recorded(between=False), Recorded(between=True)]
    found: dict[str, Any] = {}
    if options.only:  # the others stay as they were measured
        found = json.loads((RESULTS / "search.json").read_text(encoding="utf-8"))["problems"]
    problems: list[Problem] = [*tables, *KNOWN]
    for problem in problems:
        if options.only not in (None, problem.name if problem in tables else "known"):
            continue
        seeds = 2 if options.quick else 10 if problem in tables else 5
        rows = compare(problem, trials=options.trials, seeds=seeds)
        figures = medians(rows)
        for name, value in figures.items():
            print(f"{problem.name}: median {name}: {value:.3f}")
        found[problem.name] = {"medians": _plain(figures), "rows": [_plain(row) for row in rows]}
    content: dict[str, Any] = {
        "trials": options.trials,
        "slots": SLOTS,
        "epochs": tables[0].epochs,
        "best_of_table": tables[0].best,
        "seed_noise": tables[0].noise,
        "problems": found,
    }
    write_result("search", content, quick=options.quick)


def _plain(figures: Mapping[str, float]) -> dict[str, float | None]:
    """What was never reached is null: JSON knows no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


if __name__ == "__main__":
    main()
