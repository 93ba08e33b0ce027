"""How right are our importances, bands, ranges and verdicts, beside Optuna's, over many seeds?

    python tests/benchmarks/bench_sensitivity.py [--seeds 20] [--out FILE]

Writes tests/benchmarks/results/sensitivity.json: for every response function and way of sampling
the error of the shares (L1, 0 is perfect, 2 the worst), how often the most important knob is found,
how often 90 % bands hold the truth, how often stable ranges and verdicts are right; and the time of
a report on 1,000 trials. Optuna's fANOVA and PED-ANOVA see the same trials as they reach Optuna.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import optuna

from search_spaces.claims import Claim, GoodValue, Sensitive, StableRange
from search_spaces.space import Space
from study.analyses import claims, expected_best, importance, response, stable
from study.analyses.loss_model import LossModel
from study.analyses.samples import Array, gather
from study.analyses.surrogate import Surrogate, fit, refuse_importance
from study.report.build import write_report
from study.table import KNOB, TrialTable
from tests.study.demo import demo_problems
from tests.study.synthetic import (
    Plan,
    Problem,
    additive,
    ishigami,
    make_table,
    sobol_g,
    unit_space,
)

RESULTS = Path(__file__).parent / "results" / "sensitivity.json"
TOLERANCE = 0.01
WEIGHTS = (0.3, 0.15, 0.05, 0.0)


@dataclass(frozen=True)
class Case:
    """A response function with its noise and the lag of its learning curve."""

    knobs: str
    response: Callable[[Array], Array]
    noise: float
    lag: float


def _cliff(u: Array) -> Array:
    return np.where(u[:, 0] > 0.75, 0.1, 0.6 - 0.15 * (u[:, 1] - 0.5) ** 2 - 0.05 * u[:, 2])


def _ridge(u: Array) -> Array:
    """Two knobs that must move together, one that acts alone."""
    return np.asarray(0.6 - 0.8 * (u[:, 0] - u[:, 1]) ** 2 - 0.2 * (u[:, 2] - 0.5) ** 2)


CASES = {
    "additive": Case("abcd", additive(WEIGHTS), 0.006, 0.25),
    "ridge": Case("abcd", _ridge, 0.006, 0.25),
    "cliff": Case("abcd", _cliff, 0.006, 0.25),
    "ishigami": Case("abc", ishigami, 0.15, 3.0),
    "sobol_g": Case("abcd", sobol_g([0.0, 1.0, 4.5, 9.0])[0], 0.03, 0.3),
}
PLANS = {
    "space-filling": Plan(trials=120, sobol_share=1.0, bayes=False, stop=False),
    "40% sobol, then TPE-like, early stopping": Plan(trials=120),
}


@dataclass(frozen=True)
class _Truth:
    """A function in the place of a surrogate, so that the same code gives the true shares."""

    samples: Any
    response: Callable[[Array], Array]

    def draws(self, units: Array) -> Array:
        return self.response(units)[None]


def true_shares(case: Case, model: Surrogate) -> importance.Shares:
    """Shares of the function itself by the same estimator with many more points."""
    return importance.shares(_Truth(model.samples, case.response), n=8192)  # type: ignore[arg-type]


def optuna_shares(table: TrialTable, space: Space, evaluator: Any) -> Array:
    """Optuna's importances of the last scores, as its storage would hold them."""
    study = optuna.create_study(direction="maximize")
    for row in table.of(space.loss).to_dict("records"):
        if row["score"] == row["score"]:
            point = {k: row[KNOB + k] for k in space.distributions}
            study.add_trial(
                optuna.create_trial(
                    params=point, distributions=space.distributions, value=row["score"]
                )
            )
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    values = np.array([found[k] for k in space.distributions])
    return np.asarray(values / max(values.sum(), 1e-12))


def one(name: str, plan: Plan, seed: int, *, others: bool = True) -> dict[str, Any] | None:
    """All measures of one made-up study; None when the importances are refused."""
    case = CASES[name]
    space = unit_space("a", list(case.knobs))
    table = make_table([Problem(space, case.response, case.noise, case.lag)], plan, seed=seed)
    model = fit(gather(table, "a"), seed=seed)
    if not isinstance(model, Surrogate) or refuse_importance(model) is not None:
        return None
    truth, found = true_shares(case, model), importance.shares(model, seed=seed)
    first, total = truth.first[0], truth.total[0]
    normal = first / first.sum()
    mean = np.clip(found.first.mean(axis=0), 0, None)
    ours = mean / mean.sum()
    row: dict[str, Any] = {
        "kind": model.kind,
        "r2": model.best.r2,
        "l1": float(np.abs(ours - normal).sum()),
        "top1": _top(found.total.mean(axis=0), total),
        "first": _covered(found.first, first),
        "total": _covered(found.total, total),
        "curves": _curves(model, case),
    }
    if others:
        for key, evaluator in (
            ("fanova", optuna.importance.FanovaImportanceEvaluator(seed=seed)),
            ("ped", optuna.importance.PedAnovaImportanceEvaluator()),
        ):
            theirs = optuna_shares(table, space, evaluator)
            row[f"l1_{key}"] = float(np.abs(theirs - normal).sum())
            row[f"top1_{key}"] = _top(theirs, total)
    return row


def _top(shares: Array, truth: Array) -> bool:
    """Whether the knob ranked first is one, ties aside."""
    return bool(truth[int(shares.argmax())] >= truth.max() - 0.02)


def _covered(draws: Array, truth: Array) -> float:
    """Share of 90 % bands that hold the truth, half a point of integration error aside."""
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return float(((truth >= low - 0.005) & (truth <= high + 0.005)).mean())


def _curves(model: Surrogate, case: Case) -> float:
    """Share of points of the whole-space curves whose 90 % band holds the truth."""
    others = response.background(model, "whole")
    grid = np.linspace(0.05, 0.95, 7)
    inside = []
    for j, knob in enumerate(model.samples.knobs):
        draws = response.curve_draws(model, knob, grid, others)
        units = np.repeat(others[None], len(grid), axis=0)
        units[:, :, j] = grid[:, None]
        flat = case.response(units.reshape(-1, others.shape[1]))
        real = flat.reshape(len(grid), -1).mean(axis=1)
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        inside.append((real >= low) & (real <= high))
    return float(np.mean(inside))


def ranges_and_verdicts(seeds: int) -> dict[str, float]:
    """Rates on the additive function, whose safe values are known in closed form."""
    said = (
        (Claim("", "", "", StableRange("a", 0.65, 0.75)), "supported"),
        (Claim("", "", "", StableRange("a", 0.2, 0.8)), "contradicted"),
        (Claim("", "", "", GoodValue("b", 0.7)), "supported"),
        (Claim("", "", "", GoodValue("b", 0.1)), "contradicted"),
        (Claim("", "", "", Sensitive("a")), "supported"),
        (Claim("", "", "", Sensitive("d")), "contradicted"),
    )
    stated = wrong = right_verdicts = wrong_verdicts = 0
    for seed in range(seeds):
        problem = Problem(unit_space("a", list("abcd")), additive(WEIGHTS), noise=0.006)
        table = make_table([problem], Plan(trials=80), seed=500 + seed)
        model = fit(gather(table, "a"), seed=seed)
        if not isinstance(model, Surrogate):
            continue
        curves = response.analyse(model, tolerance=TOLERANCE, regions=("good",))
        for row in stable.analyse(curves, model, tolerance=TOLERANCE).to_dict("records"):
            if row["status"] == "stable":
                ends = np.array([row["low"], row["high"]], dtype=float)
                weight = WEIGHTS["abcd".index(str(row["knob"]))]
                stated += 1
                wrong += bool((weight * (ends - 0.7) ** 2 / 0.49 > TOLERANCE * 1.02).any())
        known = {"a": LossModel(model, None, TOLERANCE)}
        for claim, truth in said:
            verdict = claims.judge(table, known, "a", claim).verdict
            right_verdicts += verdict == truth
            wrong_verdicts += verdict not in (truth, "cannot tell")
    asked = seeds * len(said)
    return {
        "ranges_stated": stated / (4 * seeds),
        "ranges_too_wide": wrong / max(stated, 1),
        "verdicts_right": right_verdicts / asked,
        "verdicts_wrong": wrong_verdicts / asked,
        "cannot_tell": 1 - (right_verdicts + wrong_verdicts) / asked,
    }


def tuning_curves(seeds: int) -> float:
    """How often the band of the tuning curve holds for all n at once (stated: 0.9)."""
    n = np.arange(1, 101)
    truth = 1 - (1 - 0.5 ** (1 / n)) ** 2
    held = 0
    for seed in range(seeds):
        rows = expected_best.curve(1 - np.random.default_rng(seed).random(40) ** 2)
        held += bool(((rows["low"] <= truth) & (truth <= rows["high"])).all())
    return held / seeds


def thousand() -> dict[str, float]:
    """Seconds of a whole report, all formats, on 1,000 trials of three losses."""
    table = make_table(demo_problems(), Plan(trials=310, confirm=5))
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        write_report(table, Path(folder))
        return {
            "trials": float(len(table.trials)),
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
        }


def importances(seeds: int, *, others: bool = True) -> list[dict[str, Any]]:
    """One row per function and way of sampling: means over seeds."""
    out = []
    for name in CASES:
        for plan_name, plan in PLANS.items():
            rows = [one(name, plan, seed, others=others) for seed in range(seeds)]
            kept = [r for r in rows if r is not None]
            summary: dict[str, Any] = {"function": name, "samples": plan_name, "seeds": seeds}
            summary["refused"] = (len(rows) - len(kept)) / len(rows)
            for key in kept[0] if kept else ():
                if key == "kind":
                    summary["gp"] = float(np.mean([r["kind"] != "forest" for r in kept]))
                else:
                    summary[key] = round(float(np.mean([r[key] for r in kept])), 3)
            out.append(summary)
            print(json.dumps(summary), flush=True)
    return out


def main() -> None:
    """Run everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    report = thousand()
    print(json.dumps(report), flush=True)
    results = {
        "report_of_1000_trials": report,
        "importances": importances(arguments.seeds),
        "ranges_and_verdicts": ranges_and_verdicts(arguments.seeds),
        "tuning_curve_bands": tuning_curves(10 * arguments.seeds),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
