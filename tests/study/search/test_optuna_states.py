"""The stock bridge tells stopped trials wrongly, ours rightly, and the sampler notices.

Both search the same function with the same sampler, the same stopping rule and the same budget of
epochs; they differ only in what Optuna is told, so our distrust of misleading rungs and of ranks is
off, and both are measured apart. The function punishes believing early scores: settings that learn
slowly end best.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from study.jobs import Job, Outcome
from study.tuning.asha import Rungs
from tests.study.tuning_simulation import make_plan, open_ledger

EPOCHS, BUDGET, TRIALS = 27, 500, 60


def curve(speed: float, margin: float, epoch: int) -> float:
    """Slow learners (low speed) end higher; margin 0.3 is best."""
    final = 1.0 - 0.35 * speed - (margin - 0.3) ** 2
    return final * (1.0 - math.exp(-epoch * (0.05 + 0.5 * speed)))


def position(values: Any) -> tuple[float, float]:
    speed = (math.log10(float(values["backbone_lr"])) + 5) / 3
    return speed, float(values["margin"])


def final(values: Any) -> float:
    return curve(*position(values), EPOCHS)


def stock(seed: int) -> tuple[float, Counter[TrialState], list[Any]]:
    """OptunaSearch driven as Tune drives it; gives the best true value and the told states."""
    from ray.tune.search.optuna import OptunaSearch

    space = {
        "margin": optuna.distributions.FloatDistribution(0.0, 1.0),
        "backbone_lr": optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True),
    }
    search = OptunaSearch(space=space, metric="score", mode="max", seed=seed)
    rungs = Rungs(epochs=EPOCHS, grace=1, reduction=3)
    spent, best, number = 0, -math.inf, 0
    while spent < BUDGET and number < TRIALS:
        trial, number = f"t{number}", number + 1
        values = search.suggest(trial)
        assert isinstance(values, dict)
        for epoch in range(1, EPOCHS + 1):
            spent += 1
            score = curve(*position(values), epoch)
            stop = epoch == EPOCHS or rungs.report(trial, epoch, score)
            result = {"score": score, "training_iteration": epoch}
            if stop:
                search.on_trial_complete(trial, result=result)
                break
            search.on_trial_result(trial, result)
        if epoch == EPOCHS:
            best = max(best, final(values))
    trials = search._ot_study.trials
    return best, Counter(t.state for t in trials), trials


def ours(seed: int, directory: Path) -> tuple[float, Counter[TrialState]]:
    """Our ledger on the same function, with the same start-up and no space-filling part."""
    plan = make_plan(
        losses={
            "triplet": {
                "search": {"margin": [0.0, 1.0], "backbone_lr": [1e-5, 1e-2, "log"]},
                "fixed": {"head_lr": 1e-3},
            }
        },
        training={"epochs": EPOCHS},
        search={
            "trials": TRIALS,
            "sampler": "tpe",
            "sobol_share": 0.17,
            "repeats": 1,
            "seed": seed,
            "stop_early": {"grace_epochs": 1, "reduction": 3},
        },
    )
    ledger = open_ledger(plan, directory)
    spent, best = 0, -math.inf
    while spent < BUDGET and (job := ledger.next_job()) is not None:
        for epoch in range(1, EPOCHS + 1):
            spent += 1
            score = curve(*position(job.values), epoch)
            stop = ledger.report(job.trial, epoch, score)
            if stop or epoch == EPOCHS:
                state = "finished" if epoch == EPOCHS else "stopped"
                ledger.end(job.trial, Outcome(state, epoch, score))  # type: ignore[arg-type]
                break
        if epoch == EPOCHS:
            best = max(best, final(job.values))
    return best, Counter(t.state for t in ledger._record.searched("triplet"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seeds = range(5)
    foretelling = [ours(seed, tmp_path_factory.mktemp("ours")) for seed in seeds]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.tuning.outlook.LEAST_FINISHED", math.inf)
        distrusting = [ours(seed, tmp_path_factory.mktemp("ours")) for seed in seeds]
        patch.setattr("study.tuning.asha.LEAST_AGREEMENT", -1.0)
        plain = [ours(seed, tmp_path_factory.mktemp("ours")) for seed in seeds]
    return {
        "stock": [stock(seed) for seed in seeds],
        "ours": plain,
        "ours, no stop at misleading rungs": distrusting,
        "ours, stopped by what curves foretell": foretelling,
    }


def test_the_stock_bridge_tells_stopped_trials_as_complete(runs: dict[str, list[Any]]) -> None:
    for _, states, trials in runs["stock"]:
        assert states[TrialState.PRUNED] == 0
        assert states[TrialState.COMPLETE] == len(trials)
        short = [t for t in trials if max(t.intermediate_values, default=0) < EPOCHS - 1]
        assert short, "some trials were stopped early, and Optuna cannot tell"


def test_ours_tells_them_as_pruned(runs: dict[str, list[Any]]) -> None:
    for _, states in runs["ours"]:
        assert states[TrialState.PRUNED] > 0
        assert states[TrialState.COMPLETE] > 0


def test_the_sampler_ends_closer_to_the_optimum(
    runs: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    optimum = max(curve(speed, 0.3, EPOCHS) for speed in np.linspace(0, 1, 201))
    regret = {name: [optimum - run[0] for run in results] for name, results in runs.items()}
    with capsys.disabled():
        for name, values in regret.items():
            print(f"\n  regret after {BUDGET} epochs, {name}: ", end="")
            print(", ".join(f"{value:.4f}" for value in sorted(values)), end="")
    assert np.median(regret["ours"]) < np.median(regret["stock"])
    assert np.median(regret["ours, no stop at misleading rungs"]) < np.median(regret["ours"])
    assert np.median(regret["ours, stopped by what curves foretell"]) < np.median(regret["ours"])


def test_a_nan_leaves_the_stock_trial_running_and_ours_failed(tmp_path: Path) -> None:
    from ray.tune.search.optuna import OptunaSearch

    space = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    search = OptunaSearch(space=space, metric="score", mode="max", seed=0)
    search.suggest("a")
    search.on_trial_complete("a", result={"score": math.nan, "training_iteration": 1})
    assert search._ot_study.trials[0].state == TrialState.RUNNING
    ledger = open_ledger(make_plan(losses=["triplet"]), tmp_path)
    job: Job | None = ledger.next_job()
    assert job is not None
    ledger.end(job.trial, Outcome("diverged", 0, math.nan, error="NaN"))
    assert ledger._record.searched("triplet")[0].state == TrialState.FAIL
