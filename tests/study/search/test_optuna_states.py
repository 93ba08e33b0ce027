"""Ray Tune's OptunaSearch reports stopped trials as complete, ours as pruned; it matters.

Both search the same function with the same sampler, stopping rule and budget of epochs. They differ
only in the states that Optuna receives: disabled rungs and curve prediction are switched off in the
comparison and measured separately. The function penalises trust in early scores: slow learners
finish best.
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

from study.search.asha import SuccessiveHalving
from study.search.journal import StudyJournal
from study.trials.job import Job, TrialOutcome
from tests.support.scheduler_simulation import make_plan, open_scheduler

pytestmark = pytest.mark.slow

EPOCHS, BUDGET, TRIALS = 27, 500, 60


def curve(speed: float, margin: float, epoch: int) -> float:
    """Return a score; slow learners (low speed) end higher, margin 0.3 is best."""
    final = 1.0 - 0.35 * speed - (margin - 0.3) ** 2
    return final * (1.0 - math.exp(-epoch * (0.05 + 0.5 * speed)))


def position(values: Any) -> tuple[float, float]:
    speed = (math.log10(float(values["backbone_lr"])) + 5) / 3
    return speed, float(values["margin"])


def final(values: Any) -> float:
    return curve(*position(values), EPOCHS)


def stock(seed: int) -> tuple[float, Counter[TrialState], list[Any]]:
    """Drive OptunaSearch as Tune does; return the best value, the states and the trials."""
    from ray.tune.search.optuna import OptunaSearch

    space = {
        "margin": optuna.distributions.FloatDistribution(0.0, 1.0),
        "backbone_lr": optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True),
    }
    search = OptunaSearch(space=space, metric="score", mode="max", seed=seed)
    rungs = SuccessiveHalving(epochs=EPOCHS, grace=1, reduction=3)
    spent, best, number = 0, -math.inf, 0
    while spent < BUDGET and number < TRIALS:
        trial, number = f"t{number}", number + 1
        values = search.suggest(trial)
        assert isinstance(values, dict)
        for epoch in range(1, EPOCHS + 1):
            spent += 1
            score = curve(*position(values), epoch)
            stop = epoch == EPOCHS or rungs.report_score(trial, epoch, score)
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
    """Run our scheduler on the same function, with the same number of start-up points."""
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
    scheduler = open_scheduler(plan, directory)
    spent, best = 0, -math.inf
    while spent < BUDGET and (job := scheduler.next_job()) is not None:
        for epoch in range(1, EPOCHS + 1):
            spent += 1
            score = curve(*position(job.params), epoch)
            stop = scheduler.report_score(job.trial, epoch, score)
            if stop or epoch == EPOCHS:
                state = "finished" if epoch == EPOCHS else "stopped"
                scheduler.end_trial(job.trial, TrialOutcome(state, epoch, score))  # type: ignore[arg-type]
                break
        if epoch == EPOCHS:
            best = max(best, final(job.params))
    trials = StudyJournal(directory, plan.spaces).get_search_trials("triplet")
    return best, Counter(t.state for t in trials)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seeds = range(5)
    predicting = [ours(seed, tmp_path_factory.mktemp("ours")) for seed in seeds]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.search.curve_prediction.MIN_TRIALS_TO_PREDICT", math.inf)
        disabling = [ours(seed, tmp_path_factory.mktemp("ours")) for seed in seeds]
        patch.setattr("study.search.asha.MIN_RANK_CORRELATION", -1.0)
        plain = [ours(seed, tmp_path_factory.mktemp("ours")) for seed in seeds]
    return {
        "stock": [stock(seed) for seed in seeds],
        "ours": plain,
        "ours, unreliable rungs disabled": disabling,
        "ours, with curve prediction": predicting,
    }


def test_optuna_search_reports_stopped_trials_as_complete(runs: dict[str, list[Any]]) -> None:
    for _, states, trials in runs["stock"]:
        assert states[TrialState.PRUNED] == 0
        assert states[TrialState.COMPLETE] == len(trials)
        short = [t for t in trials if max(t.intermediate_values, default=0) < EPOCHS - 1]
        assert short, "some trials were stopped early, but Optuna does not know"


def test_ours_reports_them_as_pruned(runs: dict[str, list[Any]]) -> None:
    for _, states in runs["ours"]:
        assert states[TrialState.PRUNED] > 0
        assert states[TrialState.COMPLETE] > 0


def test_ours_ends_closer_to_the_optimum(
    runs: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    optimum = max(curve(speed, 0.3, EPOCHS) for speed in np.linspace(0, 1, 201))
    regret = {name: [optimum - run[0] for run in results] for name, results in runs.items()}
    with capsys.disabled():
        for name, values in regret.items():
            print(f"\n  regret after {BUDGET} epochs, {name}: ", end="")
            print(", ".join(f"{value:.4f}" for value in sorted(values)), end="")
    assert np.median(regret["ours"]) < np.median(regret["stock"])
    assert np.median(regret["ours, unreliable rungs disabled"]) < np.median(regret["ours"])
    assert np.median(regret["ours, with curve prediction"]) < np.median(regret["ours"])


def test_a_nan_leaves_the_trial_running_in_optuna_search_and_failed_in_ours(tmp_path: Path) -> None:
    from ray.tune.search.optuna import OptunaSearch

    space = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    search = OptunaSearch(space=space, metric="score", mode="max", seed=0)
    search.suggest("a")
    search.on_trial_complete("a", result={"score": math.nan, "training_iteration": 1})
    assert search._ot_study.trials[0].state == TrialState.RUNNING
    plan = make_plan(losses=["triplet"])
    scheduler = open_scheduler(plan, tmp_path)
    job: Job | None = scheduler.next_job()
    assert job is not None
    scheduler.end_trial(job.trial, TrialOutcome("diverged", 0, math.nan, error="NaN"))
    (trial,) = StudyJournal(tmp_path, plan.spaces).get_search_trials("triplet")
    assert trial.state == TrialState.FAIL
