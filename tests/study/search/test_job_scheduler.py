"""The scheduler hands out the right jobs, once each, also after crashes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import TrialState

from study.search.gp_sampler import MAX_FITTED_TRIALS
from study.search.job_scheduler import JobScheduler
from study.search.journal import StudyJournal
from study.search.requests import make_confirm_jobs, make_sweep_jobs
from study.trials.job import TrialOutcome
from study.trials.table import TrialStateName
from tests.support.scheduler_simulation import (
    find_incumbents,
    load_optuna_study,
    make_plan,
    open_scheduler,
    simulate_trials,
)


def test_budgets_are_equal_and_losses_take_turns(tmp_path: Path) -> None:
    plan = make_plan()
    jobs = simulate_trials(open_scheduler(plan, tmp_path))
    searched = Counter(job.loss for job in jobs if job.origin != "repeat")
    assert searched == {"proxy_anchor": 10, "triplet": 10}
    head = Counter(job.loss for job in jobs[:8])
    assert head == {"proxy_anchor": 4, "triplet": 4}


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "sobol", "grid", "cmaes"])
def test_the_journal_records_the_sampler_and_its_settings(tmp_path: Path, sampler: str) -> None:
    search = {"sampler": sampler, "seed": 3, "stop_early": {"grace_epochs": 2, "reduction": 2}}
    open_scheduler(make_plan(losses=["triplet"], search=search), tmp_path)
    description = load_optuna_study(tmp_path, "triplet").user_attrs["sampler"]
    assert (description["name"], description["seed"], description["stopped_at"]) == (
        sampler,
        3,
        [2, 4, 8],
    )
    assert description["foretold_at"] == [2, 3, 4, 6, 8]
    assert description["sobol"] == {"share": 0.4, "scrambled": True}
    assert ("n_startup_trials" in description) == (sampler in ("tpe", "gp", "cmaes"))
    if sampler == "gp":  # distinguishes it from Optuna's GPSampler
        assert description["model"] == "Gaussian process of dml-study"
        assert description["most_points"] == MAX_FITTED_TRIALS
        assert description["priors"].keys() == {"log_length", "log_signal", "log_noise"}
    if sampler == "tpe":
        assert description["multivariate"] is description["constant_liar"] is True


def test_an_extension_keeps_the_record_of_an_earlier_sampler(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"sampler": "auto", "trials": 10})
    open_scheduler(plan, tmp_path)
    open_scheduler(plan.with_extra_stage(MAX_FITTED_TRIALS), tmp_path)
    description = load_optuna_study(tmp_path, "triplet").user_attrs
    assert description["sampler/1"]["name"] == "gp"
    assert description["sampler/2"]["name"] == description["sampler"]["name"] == "tpe"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "crash_after"),
    [
        *(("tpe", moment) for moment in (1, 7, 20, 55, 90, 130)),
        *((name, 90) for name in ("random", "gp", "grid", "sobol", "cmaes")),
    ],
)
def test_a_crash_changes_no_suggestion(tmp_path: Path, crash_after: int, sampler: str) -> None:
    """With one slot an interrupted study runs exactly the points of an uninterrupted one."""
    plan = make_plan(losses=["triplet"], search={"sampler": sampler, "trials": 12})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    uninterrupted = simulate_trials(open_scheduler(plan, tmp_path / "a"), slots=1)
    first = simulate_trials(open_scheduler(plan, tmp_path / "b"), slots=1, crash_after=crash_after)
    rest = simulate_trials(open_scheduler(plan, tmp_path / "b"), slots=1)
    again = [job for job in rest if job.trial not in {j.trial for j in first}]
    assert [j.identity_key for j in [*first, *again]] == [j.identity_key for j in uninterrupted]
    # Jobs that were open at the crash come first, under their old keys.
    reopened = [job for job in rest if job.trial in {j.trial for j in first}]
    assert rest[: len(reopened)] == reopened
    keys = [
        t.user_attrs["job"]["trial"] for t in load_optuna_study(tmp_path / "b", "triplet").trials
    ]
    assert len(keys) == len(set(keys)) == 12


def test_a_lost_decision_to_stop_is_made_again(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"stop_early": {"grace_epochs": 3}})
    simulate_trials(open_scheduler(plan, tmp_path), lambda job, epoch: 0.5 + epoch / 100, slots=1)
    longer = plan.with_extra_stage(2)
    scheduler = open_scheduler(longer, tmp_path)
    while (job := scheduler.next_job()) is not None and job.origin != "bayes":
        scheduler.report_score(job.trial, 9, 0.6)
        scheduler.end_trial(job.trial, TrialOutcome("finished", 9, 0.6))
    assert job is not None
    assert not scheduler.report_score(job.trial, 2, 0.1)
    assert scheduler.report_score(job.trial, 3, 0.1)  # and the process is killed here
    resumed = open_scheduler(longer, tmp_path)
    same = resumed.next_job()
    assert same is not None
    assert same.trial == job.trial
    assert not resumed.report_score(job.trial, 2, 0.1)
    assert resumed.report_score(job.trial, 3, 0.1)


def test_epochs_and_outcomes_are_recorded_once(tmp_path: Path) -> None:
    scheduler = open_scheduler(make_plan(losses=["triplet"]), tmp_path)
    job = scheduler.next_job()
    assert job is not None
    scheduler.report_score(job.trial, 1, 0.5)
    scheduler.report_score(job.trial, 1, 0.1)
    trial = load_optuna_study(tmp_path, "triplet").trials[0]
    assert trial.intermediate_values == {1: 0.5}
    scheduler.end_trial(job.trial, TrialOutcome("failed", 1, math.nan, error="x"))
    scheduler.end_trial(job.trial, TrialOutcome("finished", 9, 0.9))
    assert load_optuna_study(tmp_path, "triplet").trials[0].state == TrialState.FAIL


def test_requests_run_once(tmp_path: Path) -> None:
    plan = make_plan(protocol={"confirm_seeds": 2})
    simulate_trials(open_scheduler(plan, tmp_path))
    requests = [
        *make_sweep_jobs(
            plan,
            find_incumbents(plan, tmp_path),
            params=["margin"],
            losses=plan.losses,
            values=3,
            seeds=2,
        ),
        *make_confirm_jobs(plan, find_incumbents(plan, tmp_path)),
    ]
    ran = simulate_trials(open_scheduler(plan, tmp_path, requests=requests, search=False))
    assert len(ran) == len(requests)
    assert {j.split for j in ran if j.origin == "confirm"} == {"test"}
    assert {j.split for j in ran if j.origin == "sweep"} == {"validation"}
    again = simulate_trials(open_scheduler(plan, tmp_path, requests=requests, search=False))
    assert again == []
    assert open_scheduler(plan, tmp_path).is_search_finished()


@pytest.mark.parametrize(("state", "times"), [("failed", 2), ("diverged", 1)])
def test_a_failed_request_runs_again_if_it_is_requested_again(
    tmp_path: Path, state: TrialStateName, times: int
) -> None:
    """A failure says nothing about the point, a divergence does; a resume requests nothing."""
    plan = make_plan(losses=["triplet"], protocol={"confirm_seeds": 2})
    simulate_trials(open_scheduler(plan, tmp_path))
    requests = make_confirm_jobs(plan, find_incumbents(plan, tmp_path))
    scheduler = open_scheduler(plan, tmp_path, requests=requests, search=False)
    bad = []
    while (job := scheduler.next_job()) is not None:
        bad.append(job.trial)
        scheduler.end_trial(job.trial, TrialOutcome(state, 0, math.nan, error="OSError: gone"))
    assert len(bad) == len(requests)
    assert open_scheduler(plan, tmp_path).is_finished(), "a resume runs no request again"
    open_scheduler(plan, tmp_path, requests=requests, search=False)  # and the process is killed
    again = simulate_trials(open_scheduler(plan, tmp_path))
    assert len(again) == (times - 1) * len(requests)
    assert not {job.trial for job in again} & set(bad)
    assert simulate_trials(open_scheduler(plan, tmp_path, requests=requests, search=False)) == []


@pytest.mark.parametrize("crash_after", [1, 30])
def test_an_interrupted_sweep_is_resumed(tmp_path: Path, crash_after: int) -> None:
    plan = make_plan(losses=["triplet"], protocol={"confirm_seeds": 2})
    simulate_trials(open_scheduler(plan, tmp_path))
    best = find_incumbents(plan, tmp_path)
    sweep = make_sweep_jobs(plan, best, params=["margin"], losses=plan.losses, values=3, seeds=1)
    requests = [*sweep, *make_confirm_jobs(plan, best)]
    first = simulate_trials(
        open_scheduler(plan, tmp_path, requests=requests, search=False), crash_after=crash_after
    )
    reader = JobScheduler(plan, StudyJournal(tmp_path, plan.spaces))
    assert not reader.is_finished()
    assert {job.split for job in reader.waiting_jobs} == {"validation", "test"}
    rest = simulate_trials(open_scheduler(plan, tmp_path))
    assert {j.identity_key for j in [*first, *rest]} == {j.identity_key for j in requests}
    assert len({j.trial for j in [*first, *rest]}) == len(requests)
    assert open_scheduler(plan, tmp_path).is_finished()
