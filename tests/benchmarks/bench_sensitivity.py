"""Benchmark of importances, bands, ranges and verdicts on known functions, against Optuna.

    python tests/benchmarks/bench_sensitivity.py [--quick] [--seeds 10]

Writes tests/benchmarks/results/sensitivity.json. For every response function and sampling plan it
has, averaged over seeds:

- coverage and width of the 90 % and 95 % bands of importances and curves (the widths of curves are
  relative to the range of the response);
- the number of values called safe or costly, and the share that is correct;
- the number of correct and wrong verdicts;
- the L1 error of the importances (0 is perfect, 2 the maximum) and how often the most important
  hyperparameter is found, also for Optuna's fANOVA and PED-ANOVA on the same trials, with pruned
  trials as finished ones or omitted.

It also has the time of a report on 1,000 trials.
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
from study.analyses.surrogate.observations import FloatArray
from study.report.writer import write_report
from study.trials.table import PARAM_PREFIX, TrialTable
from tests.benchmarks.recording import write_result
from tests.support import known_responses
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table


def compute_optuna_importances(
    table: TrialTable, evaluator: Any, *, pruned_as_finished: bool
) -> FloatArray:
    """Return Optuna's importances for the last scores of the trials.

    Pruned trials are either added as finished, as Ray's OptunaSearch does, or omitted, as Optuna
    does with trials that it knows to be pruned.
    """
    space = table.spaces["a"]
    study = optuna.create_study(direction="maximize")
    for row in table.trials_of("a").to_dict("records"):
        if row["score"] == row["score"] and (pruned_as_finished or row["state"] == "finished"):
            study.add_trial(
                optuna.create_trial(
                    params={k: row[PARAM_PREFIX + k] for k in space.distributions},
                    distributions=space.distributions,
                    value=row["score"],
                )
            )
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    values = np.array([found[k] for k in space.distributions])
    return np.asarray(values / max(values.sum(), 1e-12))


def measure_study(job: tuple[str, str, int]) -> dict[str, Any]:
    """Return all measures of one synthetic study."""
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name, plan, seed = job
    table = known_responses.make_case_table(name, known_responses.PLANS[plan], seed)
    start = time.process_time()
    model = known_responses.fit_model(name, table, seed)
    row = {"function": name, "samples": plan, "fit_seconds": time.process_time() - start}
    row |= known_responses.measure_model(name, table, model)
    truth: Any = known_responses.TrueModel(
        model.observations, known_responses.CASES[name].response, known_responses.CASES[name].noise
    )
    real = importance.indices_from_values(importance.evaluate_saltelli_design(truth, n=8192))
    first = real.first_order[0] / real.first_order[0].sum()
    for key, evaluator in (
        ("fanova", optuna.importance.FanovaImportanceEvaluator(seed=seed)),
        ("ped", optuna.importance.PedAnovaImportanceEvaluator()),
    ):
        for suffix, pruned_as_finished in (("", True), ("_pruned_left_out", False)):
            shares = compute_optuna_importances(
                table, evaluator, pruned_as_finished=pruned_as_finished
            )
            row[f"l1_{key}{suffix}"] = float(np.abs(shares - first).sum())
            row[f"top1_{key}{suffix}"] = known_responses.is_top_param_found(shares, real.total[0])
    return row


COUNT_COLUMNS = (
    "values",
    "safe",
    "safe_right",
    "costly",
    "costly_right",
    "claims",
    "right",
    "wrong",
)


def summarise_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds, with counts converted to rates."""
    out: dict[str, Any] = {k: rows[0][k] for k in ("function", "samples")} | {"seeds": len(rows)}
    kinds = [r["kind"] for r in rows]
    out["models"] = {k: kinds.count(k) for k in sorted(set(kinds))}
    sums = {k: sum(r.get(k, 0.0) for r in rows) for k in COUNT_COLUMNS}
    keys = [k for r in rows for k in r if k not in (*COUNT_COLUMNS, "kind", "function", "samples")]
    for key in dict.fromkeys(keys):
        out[key] = round(float(np.mean([r[key] for r in rows if key in r])), 3)
    out["safe_values_right"] = _compute_rate(sums["safe_right"], sums["safe"])
    out["costly_values_right"] = _compute_rate(sums["costly_right"], sums["costly"])
    out["values_told"] = _compute_rate(sums["safe"] + sums["costly"], sums["values"])
    n_decided = sums["right"] + sums["wrong"]
    out["verdicts_right"] = _compute_rate(sums["right"], n_decided)
    out["cannot_tell"] = _compute_rate(sums["claims"] - n_decided, sums["claims"])
    return out


def _compute_rate(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole else None


def measure_cases(seeds: int, *, names: list[str], processes: int) -> list[dict[str, Any]]:
    """Return one row per response function and sampling plan."""
    pairs = [(name, plan) for name in names for plan in known_responses.PLANS]
    out = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for name, plan in pairs:
            rows = list(pool.map(measure_study, [(name, plan, seed) for seed in range(seeds)]))
            out.append(summarise_rows(rows))
            print(json.dumps(out[-1]), flush=True)
    return out


def measure_tuning_curve_coverage(seeds: int) -> float:
    """Return how often the band of the tuning curve covers all n at once (nominal: 0.9)."""
    n = np.arange(1, 101)
    truth = 1 - (1 - 0.5 ** (1 / n)) ** 2
    n_covered = 0
    for seed in range(seeds):
        rows = expected_best.compute_tuning_curve(1 - np.random.default_rng(seed).random(40) ** 2)
        n_covered += bool(((rows["low"] <= truth) & (truth <= rows["high"])).all())
    return n_covered / seeds


def time_report(losses: int) -> dict[str, float]:
    """Return the seconds of a report in all formats on about 1,000 trials of several losses."""
    problems = list(islice(cycle(make_demo_problems()), losses))
    renamed = [
        replace(
            p, space=replace(p.space, loss=f"{p.space.loss}-{i // 3}" if i > 2 else p.space.loss)
        )
        for i, p in enumerate(problems)
    ]
    table = make_table(renamed, SyntheticPlan(trials=1000 // losses - 18, confirm=5))
    with tempfile.TemporaryDirectory() as folder:
        wall, before = time.perf_counter(), os.times()
        write_report(table, Path(folder))
        after = os.times()
        return {
            "losses": float(losses),
            "trials": float(len(table.trials)),
            "seconds": round(time.perf_counter() - wall, 1),
            # Includes helper processes.
            "cpu_seconds": round(sum(after[:4]) - sum(before[:4]), 1),
        }


def main() -> None:
    """Run the benchmark and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, no result file")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--cases", nargs="*", default=list(known_responses.CASES), choices=known_responses.CASES
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else arguments.seeds
    warnings.filterwarnings("ignore")
    reports = [time_report(losses) for losses in (3, 10)]
    print(json.dumps(reports), flush=True)
    results = {
        "reports_of_1000_trials": reports,
        "stated": list(known_responses.COVERAGE_LEVELS),
        "cases": measure_cases(seeds, names=arguments.cases, processes=arguments.processes),
        "tuning_curve_bands": measure_tuning_curve_coverage(10 * seeds),
    }
    write_result("sensitivity", results, quick=arguments.quick)


if __name__ == "__main__":
    main()
