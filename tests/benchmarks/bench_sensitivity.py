"""How right are our importances, bands, ranges and verdicts, beside Optuna's, over many seeds?

    python tests/benchmarks/bench_sensitivity.py [--quick] [--seeds 10]

Writes tests/benchmarks/results/sensitivity.json: for every response function and way of sampling
how often 90 % and 95 % bands of shares and curves hold the truth and how wide they are (shares as
they are, curves as a part of the response's range); how many values are called safe or costly and
how many truly are; how many verdicts are right and wrong; the error of the shares (L1, 0 is
perfect, 2 the worst) and how often the most important knob is found, beside Optuna's fANOVA and
PED-ANOVA on the same trials, with stopped ones told as finished or left out; and the time of a
report on 1,000 trials.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# One thread per process: the cases run in as many processes as there are cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import optuna

from study.analyses import expected_best, importance
from study.analyses.samples import Array
from study.report.build import write_report
from study.table import KNOB, TrialTable
from tests.benchmarks.recording import write_result
from tests.study import known
from tests.study.demo import demo_problems
from tests.study.synthetic import Plan, make_table


def optuna_shares(table: TrialTable, evaluator: Any, *, told_as_finished: bool) -> Array:
    """Optuna's importances of the last scores.

    Stopped trials are either told as finished, as by Ray's bridge, or left out, as Optuna itself
    leaves out what it knows to be pruned.
    """
    space = table.spaces["a"]
    study = optuna.create_study(direction="maximize")
    for row in table.of("a").to_dict("records"):
        if row["score"] == row["score"] and (told_as_finished or row["state"] == "finished"):
            study.add_trial(
                optuna.create_trial(
                    params={k: row[KNOB + k] for k in space.distributions},
                    distributions=space.distributions,
                    value=row["score"],
                )
            )
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    values = np.array([found[k] for k in space.distributions])
    return np.asarray(values / max(values.sum(), 1e-12))


def one(job: tuple[str, str, int]) -> dict[str, Any]:
    """All measures of one made-up study."""
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name, plan, seed = job
    table = known.study_of(name, known.PLANS[plan], seed)
    start = time.process_time()
    model = known.fitted(name, table, seed)
    row = {"function": name, "samples": plan, "fit_seconds": time.process_time() - start}
    row |= known.measure(name, table, model)
    truth: Any = known.Truth(model.samples, known.CASES[name].response, known.CASES[name].noise)
    real = importance.shares(truth, n=8192)
    first = real.first[0] / real.first[0].sum()
    for key, evaluator in (
        ("fanova", optuna.importance.FanovaImportanceEvaluator(seed=seed)),
        ("ped", optuna.importance.PedAnovaImportanceEvaluator()),
    ):
        for told, told_as_finished in (("", True), ("_pruned_left_out", False)):
            theirs = optuna_shares(table, evaluator, told_as_finished=told_as_finished)
            row[f"l1_{key}{told}"] = float(np.abs(theirs - first).sum())
            row[f"top1_{key}{told}"] = known.top(theirs, real.total[0])
    return row


COUNTS = ("values", "safe", "safe_right", "costly", "costly_right", "claims", "right", "wrong")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds; counts become rates."""
    out: dict[str, Any] = {k: rows[0][k] for k in ("function", "samples")} | {"seeds": len(rows)}
    kinds = [r["kind"] for r in rows]
    out["models"] = {k: kinds.count(k) for k in sorted(set(kinds))}
    sums = {k: sum(r.get(k, 0.0) for r in rows) for k in COUNTS}
    keys = [k for r in rows for k in r if k not in (*COUNTS, "kind", "function", "samples")]
    for key in dict.fromkeys(keys):
        out[key] = round(float(np.mean([r[key] for r in rows if key in r])), 3)
    out["safe_values_right"] = _rate(sums["safe_right"], sums["safe"])
    out["costly_values_right"] = _rate(sums["costly_right"], sums["costly"])
    out["values_told"] = _rate(sums["safe"] + sums["costly"], sums["values"])
    told = sums["right"] + sums["wrong"]
    out["verdicts_right"] = _rate(sums["right"], told)
    out["cannot_tell"] = _rate(sums["claims"] - told, sums["claims"])
    return out


def _rate(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole else None


def cases(seeds: int, *, names: list[str], processes: int) -> list[dict[str, Any]]:
    """One row per function and way of sampling."""
    pairs = [(name, plan) for name in names for plan in known.PLANS]
    out = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for name, plan in pairs:
            rows = list(pool.map(one, [(name, plan, seed) for seed in range(seeds)]))
            out.append(summary(rows))
            print(json.dumps(out[-1]), flush=True)
    return out


def tuning_curves(seeds: int) -> float:
    """How often the band of the tuning curve holds for all n at once (stated: 0.9)."""
    n = np.arange(1, 101)
    truth = 1 - (1 - 0.5 ** (1 / n)) ** 2
    held = 0
    for seed in range(seeds):
        rows = expected_best.curve(1 - np.random.default_rng(seed).random(40) ** 2)
        held += bool(((rows["low"] <= truth) & (truth <= rows["high"])).all())
    return held / seeds


def thousand(losses: int) -> dict[str, float]:
    """Seconds of a whole report, all formats, on about 1,000 trials of so many losses."""
    problems = list(islice(cycle(demo_problems()), losses))
    renamed = [
        replace(
            p, space=replace(p.space, loss=f"{p.space.loss}-{i // 3}" if i > 2 else p.space.loss)
        )
        for i, p in enumerate(problems)
    ]
    table = make_table(renamed, Plan(trials=1000 // losses - 18, confirm=5))
    with tempfile.TemporaryDirectory() as folder:
        wall, before = time.perf_counter(), os.times()
        write_report(table, Path(folder))
        after = os.times()
        return {
            "losses": float(losses),
            "trials": float(len(table.trials)),
            "seconds": round(time.perf_counter() - wall, 1),
            # Its helpers' included.
            "cpu_seconds": round(sum(after[:4]) - sum(before[:4]), 1),
        }


def main() -> None:
    """Run everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed; nothing is written")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--cases", nargs="*", default=list(known.CASES), choices=known.CASES)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else arguments.seeds
    warnings.filterwarnings("ignore")
    reports = [thousand(losses) for losses in (3, 10)]
    print(json.dumps(reports), flush=True)
    results = {
        "reports_of_1000_trials": reports,
        "stated": list(known.LEVELS),
        "cases": cases(seeds, names=arguments.cases, processes=arguments.processes),
        "tuning_curve_bands": tuning_curves(10 * seeds),
    }
    write_result("sensitivity", results, quick=arguments.quick)


if __name__ == "__main__":
    main()
