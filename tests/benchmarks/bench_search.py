"""Benchmark of the search: epochs and scores beside stock set-ups and Optuna's GP sampler.

python -m tests.benchmarks.bench_search [--quick] [--only nearest|between|known] [--seeds N]

All set-ups search the same problems (`search_problems.py`): a table of recorded trials
(`record_trials.py`), so that a search takes seconds, and known functions, which show whether a
default suits only the table.

- ours: the scheduler with the defaults of a study file; the epochs of repeated seeds count.
- optuna_gp: the same scheduler with Optuna's GPSampler in the place of our GP sampler.
- stock: OptunaSearch as Tune ships it, every trial at full length.
- stock_asha: the same with Tune's ASHAScheduler at its defaults.

Trials that run at the same time take turns. A search has reached a score when its incumbent, the
best finished trial, has that score in the mean over seeds, so seed noise cannot help. Each trial of
the table was trained with one seed, so its best point is partly the one with the luckiest seed;
the epochs to come within one seed's standard deviation of the stock best are also given.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, GPSampler

from study.search import optuna_samplers
from study.trials.table import TrialStateName
from tests.benchmarks.recording import RESULTS, write_result
from tests.benchmarks.search_problems import (
    KNOWN_PROBLEMS,
    RecordedProblem,
    SearchProblem,
    SimulatedTraining,
    build_problem_plan,
    get_distributions,
)

SLOTS = 4


class IncumbentLog:
    """Incumbents of one search with the epochs spent until each was found."""

    def __init__(self) -> None:
        self.spent = 0
        self._best_score = -math.inf
        self._incumbents: list[tuple[int, float]] = [(0, -math.inf)]

    def add_finished(self, score: float, mean: float) -> None:
        """Add a trial that reached full length."""
        if score > self._best_score:
            self._best_score = score
            self._incumbents.append((self.spent, mean))

    @property
    def final_score(self) -> float:
        """Mean score of the last incumbent."""
        return self._incumbents[-1][1]

    def count_epochs_to(self, goal: float) -> float:
        """Return the epochs until an incumbent's mean score was the goal; infinite if never."""
        return next((float(spent) for spent, mean in self._incumbents if mean >= goal), math.inf)

    def average_score(self, budget: int) -> float:
        """Return the incumbent's mean score averaged over the epochs from the first one on."""
        scores = np.full(budget, np.nan)
        for spent, mean in self._incumbents[1:]:
            scores[spent - 1 :] = mean
        return float(np.nanmean(scores))


def run_scheduler(problem: SearchProblem, *, trials: int, seed: int) -> tuple[IncumbentLog, float]:
    """Run our scheduler on a problem; return its incumbents and the median decision's seconds."""
    from study.search.job_scheduler import JobScheduler
    from study.search.journal import StudyJournal
    from study.trials.job import TrialOutcome

    plan = build_problem_plan(problem, trials=trials, seed=seed)
    rng = np.random.default_rng([seed, 1])
    live: dict[str, tuple[Any, SimulatedTraining, int]] = {}
    log, decision_seconds = IncumbentLog(), []
    with tempfile.TemporaryDirectory() as folder:
        scheduler = JobScheduler(plan, StudyJournal(Path(folder), plan.spaces, writable=True))
        while True:
            while len(live) < SLOTS:
                started = time.perf_counter()
                job = scheduler.next_job()
                if job is None:
                    break
                decision_seconds.append(time.perf_counter() - started)
                live[job.trial] = (job, problem.train(job.params, rng), 0)
            if not live:
                return log, statistics.median(decision_seconds)
            for trial, (job, training, done) in list(live.items()):
                log.spent, score = log.spent + 1, training.curve[done]
                stop = scheduler.report_score(trial, done + 1, score)
                live[trial] = (job, training, done + 1)
                if stop or done + 1 == problem.epochs:
                    state: TrialStateName = "finished" if done + 1 == problem.epochs else "stopped"
                    scheduler.end_trial(trial, TrialOutcome(state, done + 1, score))
                    del live[trial]
                    if state == "finished" and job.origin != "repeat":
                        log.add_finished(score, training.mean)


@contextmanager
def replace_gp_sampler(sampler_class: type[BaseSampler]) -> Iterator[None]:
    """Let the scheduler create another sampler where it would create our GP sampler."""
    classes = dict(optuna_samplers._SAMPLER_CLASSES)
    optuna_samplers._SAMPLER_CLASSES = {**classes, "gp": sampler_class}
    try:
        yield
    finally:
        optuna_samplers._SAMPLER_CLASSES = classes


def run_stock(problem: SearchProblem, *, trials: int, seed: int, asha: bool) -> IncumbentLog:
    """Run Tune's own searcher (and scheduler) on a problem."""
    import optuna
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = OptunaSearch(seed=seed, metric="score", mode="max")
    ranges = {
        name: (tune.loguniform if d.log else tune.uniform)(d.low, d.high)
        for name, d in get_distributions(problem).items()
        if isinstance(d, FloatDistribution)
    }
    search.set_search_properties("score", "max", ranges)
    scheduler = ASHAScheduler(metric="score", mode="max", max_t=problem.epochs)
    rng = np.random.default_rng([seed, 2])
    live: dict[str, tuple[SimulatedTraining, int]] = {}
    suggested, log = 0, IncumbentLog()
    while suggested < trials or live:
        while len(live) < SLOTS and suggested < trials:
            point = search.suggest(f"t{suggested}")
            live[f"t{suggested}"] = (problem.train(point, rng), 0)
            if asha:
                scheduler.on_trial_add(None, SimpleNamespace(trial_id=f"t{suggested}"))
            suggested += 1
        for trial, (training, done) in list(live.items()):
            score = training.curve[done]
            log.spent, result = log.spent + 1, {"score": score, "training_iteration": done + 1}
            live[trial] = (training, done + 1)
            search.on_trial_result(trial, result)
            handle = SimpleNamespace(trial_id=trial)
            is_stopped = asha and (
                scheduler.on_trial_result(None, handle, result) == TrialScheduler.STOP
            )
            if is_stopped or done + 1 == problem.epochs:
                search.on_trial_complete(trial, result)
                del live[trial]
                if done + 1 == problem.epochs:
                    log.add_finished(score, training.mean)
    return log


def compare_seed(problem: SearchProblem, *, trials: int, seed: int) -> dict[str, float]:
    """Run every set-up with one seed; return a row of figures."""
    ours, seconds = run_scheduler(problem, trials=trials, seed=seed)
    with replace_gp_sampler(GPSampler):
        optuna_gp, gp_seconds = run_scheduler(problem, trials=trials, seed=seed)
    budget = min(ours.spent, optuna_gp.spent)
    row: dict[str, float] = {
        "seed": seed,
        "ours_best": ours.final_score,
        "ours_average": ours.average_score(budget),
        "ours_epochs": ours.spent,
        "ours_decision_ms": 1000 * seconds,
        "optuna_gp_best": optuna_gp.final_score,
        "optuna_gp_average": optuna_gp.average_score(budget),
        "optuna_gp_epochs": optuna_gp.spent,
        "optuna_gp_decision_ms": 1000 * gp_seconds,
    }
    for name, asha in (("stock", False), ("stock_asha", True)):
        theirs = run_stock(problem, trials=trials, seed=seed, asha=asha)
        row[f"{name}_best"], row[f"{name}_epochs"] = theirs.final_score, theirs.spent
        row[f"share_of_{name}"] = ours.count_epochs_to(theirs.final_score) / theirs.spent
        near = ours.count_epochs_to(theirs.final_score - problem.noise)
        row[f"share_to_noise_of_{name}"] = near / theirs.spent
        near = optuna_gp.count_epochs_to(theirs.final_score - problem.noise)
        row[f"optuna_gp_share_to_noise_of_{name}"] = near / theirs.spent
    return row


def compare_gp_samplers(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return how our GP sampler differs from Optuna's, paired by seed."""
    from scipy.stats import wilcoxon

    figures: dict[str, float] = {}
    for figure in ("best", "average"):
        gains = np.array([r[f"ours_{figure}"] - r[f"optuna_gp_{figure}"] for r in rows])
        figures[f"gain_{figure}"] = float(gains.mean())
        figures[f"wins_{figure}"] = int((gains > 0).sum())
        figures[f"losses_{figure}"] = int((gains < 0).sum())
        figures[f"p_{figure}"] = float(wilcoxon(gains).pvalue) if gains.any() else 1.0
    return figures


def compute_medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every figure except the seed."""
    return {name: statistics.median(r[name] for r in rows) for name in rows[0] if name != "seed"}


def main() -> None:
    """Compare all set-ups on all problems; print and write the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", choices=("nearest", "between", "known"))
    options = parser.parse_args()
    tables = [RecordedProblem(between=False), RecordedProblem(between=True)]
    problems: list[SearchProblem] = [*tables, *KNOWN_PROBLEMS]
    found: dict[str, Any] = {}
    if options.only:  # the figures of the other problems stay
        found = json.loads((RESULTS / "search.json").read_text(encoding="utf-8"))["problems"]
    seeds = 2 if options.quick else options.seeds
    for problem in problems:
        if options.only not in (None, problem.name if problem in tables else "known"):
            continue
        rows = Parallel(n_jobs=options.processes)(
            delayed(compare_seed)(problem, trials=options.trials, seed=seed)
            for seed in range(seeds)
        )
        figures, gains = compute_medians(rows), compare_gp_samplers(rows)
        for name, value in {**figures, **gains}.items():
            print(f"{problem.name}: {name}: {value:.4g}", flush=True)
        found[problem.name] = {
            "medians": _replace_infinity(figures),
            "ours_beside_optuna_gp": gains,
            "rows": [_replace_infinity(row) for row in rows],
        }
    content: dict[str, Any] = {
        "trials": options.trials,
        "seeds": seeds,
        "slots": SLOTS,
        "epochs": tables[0].epochs,
        "best_of_table": tables[0].best,
        "seed_noise": tables[0].noise,
        "problems": found,
    }
    write_result("search", content, quick=options.quick)


def _replace_infinity(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Return the figures with None for scores that were never reached: JSON has no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


if __name__ == "__main__":
    main()
