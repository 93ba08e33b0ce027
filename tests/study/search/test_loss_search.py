"""The search of a loss: order of its jobs, budgets, pruning and incumbent."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import TrialState

from study.search.designs import sobol_point
from study.search.journal import StudyJournal, job_from_trial, outcome_from_trial
from study.search.loss_search import LossSearch
from study.search.requests import make_confirm_jobs
from study.trials.job import Job, TrialOutcome
from tests.support.scheduler_simulation import (
    closeness_score,
    find_incumbents,
    load_optuna_study,
    make_plan,
    open_scheduler,
    simulate_trials,
)


def test_the_order_is_published_sobol_sampled_repeats_incumbent(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 10, "repeats": 3})
    jobs = simulate_trials(open_scheduler(plan, tmp_path), slots=1)
    origins = [job.origin for job in jobs]
    assert origins[0] == "published"
    assert origins[1:5] == ["sobol"] * 4
    assert origins[5:10] == ["bayes"] * 5
    assert origins[10:] == ["repeat"] * 6
    repeated = [job.point for job in jobs[10:]]
    # The published point and one Sobol point, twice each; then the incumbent.
    assert repeated[:4] == [jobs[0].point] * 2 + [jobs[1].point] * 2
    assert repeated[4] == repeated[5]
    assert len(jobs) == plan.max_trials("triplet")
    assert len({job.trial for job in jobs}) == len(jobs)


def test_sampled_and_sobol_points_are_interleaved(tmp_path: Path) -> None:
    """At any time the study has a good share of Sobol points, at its end the planned one."""
    plan = make_plan(losses=["triplet"], search={"trials": 40, "repeats": 1})
    first = simulate_trials(open_scheduler(plan, tmp_path), slots=1)
    more = simulate_trials(open_scheduler(plan.with_extra_stage(20), tmp_path), slots=1)
    origins = [job.origin for job in first]
    assert origins[:10] == ["published"] + ["sobol"] * 5 + ["bayes"] * 3 + ["sobol"]
    assert Counter(origins) == {"published": 1, "sobol": 16, "bayes": 23}
    for end in range(6, 40):
        assert Counter(origins[:end])["sobol"] / end >= 1 / 3, end
    assert [job.origin for job in more[:4]] == ["bayes"] * 3 + ["sobol"]
    assert Counter(job.origin for job in more) == {"sobol": 8, "bayes": 12}
    sobol = [job.params for job in [*first, *more] if job.origin == "sobol"]
    space = plan.spaces["triplet"]
    assert sobol == [sobol_point(space, i, seed=0) for i in range(24)]


def test_a_slot_waits_only_for_the_incumbent(tmp_path: Path) -> None:
    """Known repeats keep slots busy while the last points of the search are running."""
    plan = make_plan(losses=["triplet"], search={"trials": 6, "repeats": 3})
    scheduler, jobs = open_scheduler(plan, tmp_path), []
    while (job := scheduler.next_job()) is not None:
        jobs.append(job)
    assert Counter(job.origin for job in jobs)["repeat"] == 2
    assert len(jobs) == 8


def test_an_extension_keeps_every_slot_busy(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 6, "repeats": 2})
    simulate_trials(open_scheduler(plan, tmp_path))
    longer = plan.with_extra_stage(8)
    first: list[Job] = []
    scheduler = open_scheduler(longer, tmp_path)
    while len(first) < 3 and (job := scheduler.next_job()) is not None:
        first.append(job)
    resumed, jobs = open_scheduler(longer, tmp_path), []
    while (job := resumed.next_job()) is not None:
        jobs.append(job)
    assert jobs[:3] == first
    assert Counter(job.origin for job in jobs) == {"sobol": 3, "bayes": 5}


def test_an_extension_continues_the_sobol_sequence(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 10, "repeats": 2})
    first = simulate_trials(open_scheduler(plan, tmp_path), slots=1)
    longer = plan.with_extra_stage(10)
    scheduler = open_scheduler(longer, tmp_path)
    assert not scheduler.is_finished()
    more = simulate_trials(scheduler, slots=1)
    searched = [j for j in [*first, *more] if j.origin != "repeat"]
    assert len(searched) == 20
    sobol = [j for j in searched if j.origin == "sobol"]
    direct = make_plan(losses=["triplet"], search={"trials": 20, "repeats": 2})
    (tmp_path / "direct").mkdir()
    uninterrupted = simulate_trials(open_scheduler(direct, tmp_path / "direct"), slots=1)
    assert [j.params for j in sobol] == [j.params for j in uninterrupted if j.origin == "sobol"]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_failed_repeat_counts_towards_the_budget(tmp_path: Path, resumed: bool) -> None:
    """Budgets stay equal: a loss does not train more often because its trials fail."""
    plan = make_plan(search={"trials": 4, "repeats": 3})
    scheduler = open_scheduler(plan, tmp_path)
    asked: list[Job] = []
    failed = 0
    while (job := scheduler.next_job()) is not None:
        asked.append(job)
        bad = job.loss == "triplet" and job.origin == "repeat" and failed < 2
        failed += bad
        score = closeness_score(job, 9)
        scheduler.end_trial(
            job.trial,
            TrialOutcome("failed", 0, math.nan) if bad else TrialOutcome("finished", 9, score),
        )
        if bad and resumed:
            scheduler = open_scheduler(plan, tmp_path)
    assert scheduler.is_finished()
    repeats = [job for job in asked if job.origin == "repeat"]
    assert len({job.identity_key for job in repeats}) == len(repeats), "no repeat starts twice"
    assert {p.loss: p.failed for p in scheduler.get_progress()} == {"proxy_anchor": 0, "triplet": 2}
    assert all(p.ended == p.planned for p in scheduler.get_progress())
    for loss in plan.losses:
        points = Counter(job.point for job in repeats if job.loss == loss)
        assert set(points.values()) == {2}, "every point has the planned number of repeats"


def test_no_trial_is_stopped_while_others_may_be_warming_up(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], training={"epochs": 9, "warmup_epochs": [0, 3]})
    samplers = open_scheduler(plan, tmp_path).describe_samplers()
    assert samplers["triplet"]["stopped_at"] == [4]


@pytest.mark.parametrize("trials", [6, 14], ids=["by rank", "by prediction"])
def test_a_resumed_search_stops_the_same_trials(tmp_path: Path, trials: int) -> None:
    search = {"trials": trials, "repeats": 1, "stop_early": {"grace_epochs": 3}}
    plan = make_plan(losses=["triplet"], search=search)
    scheduler = open_scheduler(plan, tmp_path)
    simulate_trials(scheduler, slots=1)
    live, rebuilt = scheduler.searches["triplet"], LossSearch(plan, "triplet")
    for trial in StudyJournal(tmp_path, plan.spaces).get_trials("triplet"):
        rebuilt.replay_trial(trial, job_from_trial(trial), outcome_from_trial(trial))
    decisions = []
    for number, score in enumerate((0.1, 0.3, 0.5, 0.6, 0.7), start=100):
        point = plan.example_point("triplet")
        job = Job(f"triplet-{number}", "triplet", number, "bayes", point, seed=0)
        stops = []
        for loss_search in (live, rebuilt):
            loss_search.start_job(job)
            stops.append(loss_search.report_score(job, 3, score))
        assert stops[0] == stops[1]
        decisions.append(stops[0])
    assert set(decisions) == {True, False}


def test_test_scores_do_not_reach_the_search(tmp_path: Path) -> None:
    """Predicted scores of stopped trials come from validation only, even after a confirmation."""
    search = {"sampler": "gp", "trials": 12, "stop_early": {"grace_epochs": 1, "reduction": 2}}
    sampler_values = []
    for lift in (0.0, 5.0):
        directory = tmp_path / str(lift)
        directory.mkdir()
        plan = make_plan(losses=["triplet"], search=search, protocol={"confirm_seeds": 2})
        simulate_trials(open_scheduler(plan, directory), slots=1)
        jobs = make_confirm_jobs(plan, find_incumbents(plan, directory))

        def curve(job: Job, epoch: int, lift: float = lift) -> float:
            return closeness_score(job, epoch) + (lift * epoch if job.split == "test" else 0.0)

        simulate_trials(open_scheduler(plan, directory, requests=jobs, search=False), curve)
        simulate_trials(open_scheduler(plan.with_extra_stage(8), directory), slots=1)
        trials = load_optuna_study(directory, "triplet").trials
        sampler_values.append(
            [t.user_attrs.get("told") for t in trials if t.state == TrialState.PRUNED]
        )
    assert sampler_values[0] == sampler_values[1]
    assert any(value is not None for value in sampler_values[0])


def finish(search: LossSearch, score: float) -> Job:
    job = search.next_job()
    assert job is not None
    search.start_job(job)
    search.end_job(job, TrialOutcome("finished", 9, score))
    return job


def test_the_earlier_of_two_equal_trials_is_the_incumbent() -> None:
    search = LossSearch(make_plan(losses=["triplet"]), "triplet")
    assert search.get_incumbent() is None
    first, second = search.next_job(), None
    assert first is not None
    search.start_job(first)
    second = finish(search, 0.5)
    assert search.get_incumbent() == second
    search.end_job(first, TrialOutcome("finished", 9, 0.5))
    assert search.get_incumbent() == first
    assert search.best_trials(5) == [first.trial, second.trial]
    assert search.list_ended_jobs() == [second, first]


def test_only_finished_search_trials_compete() -> None:
    search = LossSearch(make_plan(losses=["triplet"]), "triplet")
    best = finish(search, 0.3)
    for outcome in (
        TrialOutcome("stopped", 3, 0.9),
        TrialOutcome("diverged", 1, math.nan),
        TrialOutcome("failed", 0, math.nan),
    ):
        job = search.next_job()
        assert job is not None
        search.start_job(job)
        search.end_job(job, outcome)
    swept = Job("triplet-0009", "triplet", 9, "sweep", best.params, seed=1)
    search.start_job(swept)
    search.end_job(swept, TrialOutcome("finished", 9, 0.8))
    assert search.get_incumbent() == best
    progress = search.get_progress(running=[], waiting=[], searching=True, epochs_running=0)
    assert (progress.ended, progress.stopped, progress.diverged, progress.failed) == (5, 1, 1, 1)
    assert (progress.best, progress.best_trial) == (0.3, best.trial)
    assert progress.epochs_done == 9 + 3 + 1 + 0 + 9


def test_trial_numbers_are_never_reused() -> None:
    search = LossSearch(make_plan(losses=["triplet"]), "triplet")
    job = finish(search, 0.1)
    assert job.number == 0
    assert [search.take_trial_number() for _ in range(3)] == [1, 2, 3]
    assert finish(search, 0.1).number == 4
