"""How do the driver's memory and the time per decision grow with the number of recorded trials?

python -m tests.benchmarks.bench_scale [--quick]

Each size is measured in a process of its own: a study with so many recorded trials is opened (as
`study resume` does), then goes on for some trials. Beside it OptunaSearch, as Tune ships it, that
was told as many finished trials. At last: what an epoch leaves behind in the driver's memory.
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
SIZES = (100, 300, 1000, 3000, 10_000)
GOING_ON = 30


def fill(directory: Path, trials: int) -> None:
    """Record so many trials of two losses, by a study that draws them at random."""
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record
    from tests.study.tuning_simulation import drive

    plan = _plan(trials, sampler="random")
    drive(Ledger(plan, Record(directory, plan.spaces, writable=True)), epochs=EPOCHS)


def ours(directory: Path, trials: int) -> dict[str, float]:
    """Open the recorded study and go on with TPE."""
    from study.jobs import Outcome
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record
    from tests.study.tuning_simulation import closeness

    plan = _plan(trials + 4 * GOING_ON, sampler="tpe")
    before = _resident()
    started = time.perf_counter()
    ledger = Ledger(plan, Record(directory, plan.spaces, writable=True))
    opened = time.perf_counter() - started
    asking = telling = 0.0
    for _ in range(GOING_ON):
        started = time.perf_counter()
        job = ledger.next_job()
        assert job is not None
        asking += time.perf_counter() - started
        started = time.perf_counter()
        for epoch in range(1, EPOCHS + 1):
            ledger.report(job.trial, epoch, closeness(job, epoch))
            ledger.progress()
        ledger.end(job.trial, Outcome("finished", EPOCHS, closeness(job, EPOCHS)))
        telling += time.perf_counter() - started
    return {
        "open_seconds": opened,
        "ask_ms": 1000 * asking / GOING_ON,
        "tell_ms": 1000 * telling / GOING_ON,
        "memory_mib": _resident(),
        "memory_of_trials_mib": _resident() - before,
    }


def stock(trials: int) -> dict[str, float]:
    """OptunaSearch with as many finished trials."""
    import optuna
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    from study.tuning.sampling import sobol_point

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plan = _plan(trials, sampler="random")
    loss = plan.losses[0]
    search = OptunaSearch(seed=0, metric="score", mode="max")
    knobs = {
        name: (tune.loguniform if d.log else tune.uniform)(d.low, d.high)
        for name, d in plan.spaces[loss].distributions.items()
    }
    search.set_search_properties("score", "max", knobs)
    before = _resident()
    for i in range(trials // 2):  # ours has two losses, and a sampler for each
        search.add_evaluated_point(sobol_point(plan.spaces[loss], i, seed=0), float(i % 97))
    asking = telling = 0.0
    for i in range(GOING_ON):
        started = time.perf_counter()
        search.suggest(f"t{i}")
        asking += time.perf_counter() - started
        started = time.perf_counter()
        for epoch in range(1, EPOCHS + 1):
            search.on_trial_result(f"t{i}", {"score": float(i % 7), "training_iteration": epoch})
        search.on_trial_complete(f"t{i}", {"score": float(i % 7), "training_iteration": EPOCHS})
        telling += time.perf_counter() - started
    return {
        "ask_ms": 1000 * asking / GOING_ON,
        "tell_ms": 1000 * telling / GOING_ON,
        "memory_mib": _resident(),
        "memory_of_trials_mib": _resident() - before,
    }


def _plan(trials: int, *, sampler: str) -> Any:
    from tests.study.tuning_simulation import make_plan

    return make_plan(
        losses=["proxy_anchor", "proxy_nca_pp"],
        training={"epochs": EPOCHS},
        search={"trials": trials // 2, "repeats": 1, "sampler": sampler, "stop_early": False},
    )


def _resident() -> float:
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


def _apart(*arguments: str) -> dict[str, float]:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", "--one", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def draw(rows: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Memory and time per decision against the number of trials, both on log scales."""
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
    """Measure, print, draw, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=3)
    arguments = parser.parse_args()
    if arguments.one:
        kind, size, folder = arguments.one
        row = ours(Path(folder), int(size)) if kind == "ours" else stock(int(size))
        print(json.dumps(row))
        return
    rows: dict[str, dict[int, dict[str, float]]] = {"ours": {}, "stock": {}}
    for size in SIZES[:2] if arguments.quick else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), size)
            rows["ours"][size] = _apart("ours", str(size), folder)
            rows["stock"][size] = _apart("stock", str(size), folder)
        for name in rows:
            row = rows[name][size]
            times = f"ask {row['ask_ms']:8.1f} ms  tell {row['tell_ms']:6.1f} ms"
            rest = f"memory {row['memory_mib']:6.0f} MiB  open {row.get('open_seconds', 0):5.1f} s"
            print(f"{size:>6} trials  {name:<6} {times}  {rest}", flush=True)
    from tests.study.feeding import bytes_per_epoch

    with tempfile.TemporaryDirectory() as folder:
        more = 100 if arguments.quick else 1000
        left = {
            sampler: bytes_per_epoch(_made(Path(folder) / sampler), sampler=sampler, epochs=more)
            for sampler in ("tpe", "gp")
        }
    for sampler, held in left.items():
        print(f"driver memory per epoch, {sampler}: {held:.2f} bytes over {more} more epochs")
    if not arguments.quick:
        write_result("scale", {"epochs": EPOCHS, "rows": rows, "bytes_per_epoch": left})
        draw(rows, RESULTS / "scale.png")


if __name__ == "__main__":
    main()
