"""Benchmark of the driver's memory and time per trial against the number of recorded trials.

python -m tests.benchmarks.bench_scale [--quick]

Each number of trials is measured in a new process. A study with this many recorded trials is
opened, as by `study resume`, and continues for some trials. Tune's OptunaSearch with the same
number of finished trials is measured for comparison. The benchmark also measures the memory that
the driver keeps per epoch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.recording import RESULTS, write_result

EPOCHS = 8
TRIAL_COUNTS = (100, 300, 1000, 3000, 10_000)
N_CONTINUED_TRIALS = 30


def fill_journal(directory: Path, trials: int) -> None:
    """Write a journal with this many random trials of two losses."""
    from study.search.job_scheduler import JobScheduler
    from study.search.journal import StudyJournal
    from tests.support.scheduler_simulation import simulate_trials

    plan = _make_study_plan(trials, sampler="random")
    simulate_trials(
        JobScheduler(plan, StudyJournal(directory, plan.spaces, writable=True)), epochs=EPOCHS
    )


def measure_own_search(directory: Path, trials: int) -> dict[str, float]:
    """Open the recorded study, continue with TPE and return times and memory."""
    from study.search.job_scheduler import JobScheduler
    from study.search.journal import StudyJournal
    from study.trials.job import TrialOutcome
    from tests.support.scheduler_simulation import closeness_score

    plan = _make_study_plan(trials + 4 * N_CONTINUED_TRIALS, sampler="tpe")
    before = _read_resident_mib()
    started = time.perf_counter()
    scheduler = JobScheduler(plan, StudyJournal(directory, plan.spaces, writable=True))
    opened = time.perf_counter() - started
    ask_seconds = tell_seconds = 0.0
    for _ in range(N_CONTINUED_TRIALS):
        started = time.perf_counter()
        job = scheduler.next_job()
        assert job is not None
        ask_seconds += time.perf_counter() - started
        started = time.perf_counter()
        for epoch in range(1, EPOCHS + 1):
            scheduler.report_score(job.trial, epoch, closeness_score(job, epoch))
            scheduler.get_progress()
        scheduler.end_trial(
            job.trial, TrialOutcome("finished", EPOCHS, closeness_score(job, EPOCHS))
        )
        tell_seconds += time.perf_counter() - started
    return {
        "open_seconds": opened,
        "ask_ms": 1000 * ask_seconds / N_CONTINUED_TRIALS,
        "tell_ms": 1000 * tell_seconds / N_CONTINUED_TRIALS,
        "memory_mib": _read_resident_mib(),
        "memory_of_trials_mib": _read_resident_mib() - before,
    }


def measure_stock_search(trials: int) -> dict[str, float]:
    """Return times and memory of OptunaSearch with the same number of finished trials."""
    import optuna
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    from study.search.designs import sobol_point

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plan = _make_study_plan(trials, sampler="random")
    loss = plan.losses[0]
    search = OptunaSearch(seed=0, metric="score", mode="max")
    params = {
        name: (tune.loguniform if d.log else tune.uniform)(d.low, d.high)
        for name, d in plan.spaces[loss].distributions.items()
    }
    search.set_search_properties("score", "max", params)
    before = _read_resident_mib()
    for i in range(trials // 2):  # our study has two losses with a sampler each
        search.add_evaluated_point(sobol_point(plan.spaces[loss], i, seed=0), float(i % 97))
    ask_seconds = tell_seconds = 0.0
    for i in range(N_CONTINUED_TRIALS):
        started = time.perf_counter()
        search.suggest(f"t{i}")
        ask_seconds += time.perf_counter() - started
        started = time.perf_counter()
        for epoch in range(1, EPOCHS + 1):
            search.on_trial_result(f"t{i}", {"score": float(i % 7), "training_iteration": epoch})
        search.on_trial_complete(f"t{i}", {"score": float(i % 7), "training_iteration": EPOCHS})
        tell_seconds += time.perf_counter() - started
    return {
        "ask_ms": 1000 * ask_seconds / N_CONTINUED_TRIALS,
        "tell_ms": 1000 * tell_seconds / N_CONTINUED_TRIALS,
        "memory_mib": _read_resident_mib(),
        "memory_of_trials_mib": _read_resident_mib() - before,
    }


def _make_study_plan(trials: int, *, sampler: str) -> Any:
    from tests.support.scheduler_simulation import make_plan

    return make_plan(
        losses=["proxy_anchor", "proxy_nca_pp"],
        training={"epochs": EPOCHS},
        search={"trials": trials // 2, "repeats": 1, "sampler": sampler, "stop_early": False},
    )


def _read_resident_mib() -> float:
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


def _measure_in_process(*arguments: str) -> dict[str, float]:
    """Return one measurement of a new process."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", "--one", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _make_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def draw_figure(rows: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Draw time per trial and driver memory against the number of recorded trials."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for name, marker in (("ours", "o"), ("stock", "s")):
        sizes = sorted(rows[name])
        decision = [rows[name][n]["ask_ms"] + rows[name][n]["tell_ms"] for n in sizes]
        panels[0].plot(sizes, decision, marker=marker, label=name)
        panels[1].plot(sizes, [rows[name][n]["memory_mib"] for n in sizes], marker=marker)
    first = min(rows["ours"])
    at = rows["ours"][first]["ask_ms"] + rows["ours"][first]["tell_ms"]
    sizes = sorted(rows["ours"])
    panels[0].plot(sizes, [at * n / first for n in sizes], "k:", label="linear growth")
    panels[0].set(xscale="log", yscale="log", xlabel="recorded trials", ylabel="ms per trial")
    panels[1].set(
        xscale="log", xlabel="recorded trials", ylabel="driver memory, MiB", ylim=(0, None)
    )
    panels[0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the benchmark, print the rows, draw the figure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=3)
    arguments = parser.parse_args()
    if arguments.one:
        kind, size, folder = arguments.one
        row = (
            measure_own_search(Path(folder), int(size))
            if kind == "ours"
            else measure_stock_search(int(size))
        )
        print(json.dumps(row))
        return
    rows: dict[str, dict[int, dict[str, float]]] = {"ours": {}, "stock": {}}
    for size in TRIAL_COUNTS[:2] if arguments.quick else TRIAL_COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            fill_journal(Path(folder), size)
            rows["ours"][size] = _measure_in_process("ours", str(size), folder)
            rows["stock"][size] = _measure_in_process("stock", str(size), folder)
        for name in rows:
            row = rows[name][size]
            times = f"ask {row['ask_ms']:8.1f} ms  tell {row['tell_ms']:6.1f} ms"
            rest = f"memory {row['memory_mib']:6.0f} MiB  open {row.get('open_seconds', 0):5.1f} s"
            print(f"{size:>6} trials  {name:<6} {times}  {rest}", flush=True)
    from tests.support.driver_memory import measure_bytes_per_epoch

    with tempfile.TemporaryDirectory() as folder:
        extra_epochs = 100 if arguments.quick else 1000
        per_epoch = {
            sampler: measure_bytes_per_epoch(
                _make_folder(Path(folder) / sampler), sampler=sampler, epochs=extra_epochs
            )
            for sampler in ("tpe", "gp")
        }
    for sampler, n_bytes in per_epoch.items():
        measured = f"{n_bytes:.2f} bytes over {extra_epochs} more epochs"
        print(f"driver memory per epoch, {sampler}: {measured}")
    if not arguments.quick:
        write_result("scale", {"epochs": EPOCHS, "rows": rows, "bytes_per_epoch": per_epoch})
        draw_figure(rows, RESULTS / "scale.png")


if __name__ == "__main__":
    main()
