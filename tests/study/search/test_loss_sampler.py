"""The sampler of a loss sees true states and scores, and resumes where it was."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from optuna.trial import TrialState

from search_spaces.space import ParamValue
from study.search.gp_sampler import DIVERGED_ATTR
from study.search.journal import StudyJournal, job_from_trial, outcome_from_trial
from study.search.loss_sampler import LossSampler
from study.trials.job import Job, TrialOutcome, point_key
from tests.support.scheduler_simulation import (
    load_optuna_study,
    make_plan,
    open_scheduler,
    simulate_trials,
)


def add_sobol_trial(sampler: LossSampler, number: int, **params: ParamValue) -> str:
    job = Job(f"triplet-{number:04d}", "triplet", number, "sobol", params, seed=0)
    sampler.add_trial(job)
    return job.trial


@pytest.mark.parametrize("name", ["tpe", "random", "cmaes", "gp"])
def test_a_point_depends_on_its_index_and_the_trials_only(name: str) -> None:
    plan = make_plan(losses=["triplet"], search={"sampler": name, "trials": 20})
    points = []
    for index in (0, 0, 1):
        sampler = LossSampler(plan, "triplet")
        for number, margin in enumerate((0.1, 0.2, 0.4, 0.6, 0.8)):
            point = {**plan.example_point("triplet"), "margin": margin}
            trial = add_sobol_trial(sampler, number, **point)
            sampler.tell_outcome(trial, TrialOutcome("finished", 9, 1.0 - margin), None)
        points.append(sampler.sample_point(index))
    plan.spaces["triplet"].check_point(points[0])
    assert points[0] == points[1] != points[2]


def test_a_sampled_point_becomes_the_trial_of_its_job() -> None:
    plan = make_plan(losses=["triplet"], search={"sampler": "random"})
    sampler = LossSampler(plan, "triplet")
    assert sampler.get_system_attrs() == {}
    point = sampler.sample_point(0)
    sampler.add_trial(Job("triplet-0000", "triplet", 0, "bayes", point, seed=0))
    sampler.tell_outcome("triplet-0000", TrialOutcome("finished", 9, 0.5), None)
    assert [(t.params, t.value) for t in sampler.trials] == [(point, 0.5)]


def test_outcomes_become_optuna_states() -> None:
    plan = make_plan(losses=["triplet"], search={"sampler": "gp"})
    sampler = LossSampler(plan, "triplet")
    assert sampler.needs_full_values
    point = plan.example_point("triplet")
    outcomes = {
        "finished": (TrialOutcome("finished", 9, 0.5), None),
        "stopped": (TrialOutcome("stopped", 3, 0.2), None),
        "predicted": (TrialOutcome("stopped", 3, 0.2), 0.4),
        "diverged": (TrialOutcome("diverged", 1, math.nan), None),
        "failed": (TrialOutcome("failed", 0, math.nan), None),
    }
    for number, (outcome, full_value) in enumerate(outcomes.values()):
        sampler.tell_outcome(add_sobol_trial(sampler, number, **point), outcome, full_value)
    add_sobol_trial(sampler, 5, **point)
    assert [t.state for t in sampler.trials] == [
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.COMPLETE,
        TrialState.FAIL,
        TrialState.FAIL,
        TrialState.RUNNING,
    ]
    assert [t.value for t in sampler.trials if t.state == TrialState.COMPLETE] == [0.5, 0.4]
    assert sampler.trials[1].intermediate_values == {3: 0.2}
    assert [DIVERGED_ATTR in t.user_attrs for t in sampler.trials].count(True) == 1
    assert DIVERGED_ATTR in sampler.trials[3].user_attrs


def test_the_sampler_value_of_an_incomplete_stop_is_ignored(tmp_path: Path) -> None:
    """A crash came between the sampler value and the state; then the trial finished."""
    plan = make_plan(losses=["triplet"], search={"sampler": "gp", "trials": 6, "repeats": 1})
    scheduler = open_scheduler(plan, tmp_path)
    job = scheduler.next_job()
    assert job is not None
    recorded = load_optuna_study(tmp_path, "triplet")
    recorded._storage.set_trial_user_attr(recorded.trials[0]._trial_id, "told", 0.9)
    scheduler.report_score(job.trial, 9, 0.2)
    scheduler.end_trial(job.trial, TrialOutcome("finished", 9, 0.2))
    for study in (scheduler, open_scheduler(plan, tmp_path)):
        assert [t.value for t in study.searches["triplet"].sampler.trials] == [0.2]


def test_a_sampler_that_uses_pruned_trials_sees_their_own_scores(tmp_path: Path) -> None:
    """`auto` changes from gp to tpe when a study is extended; predicted scores were for gp."""
    search = {"trials": 14, "repeats": 1, "stop_early": {"grace_epochs": 1, "reduction": 2}}
    plan = make_plan(losses=["triplet"], search=search)
    simulate_trials(open_scheduler(plan, tmp_path), slots=1)
    recorded = load_optuna_study(tmp_path, "triplet").trials
    assert any(t.user_attrs.get("told") is not None for t in recorded)
    seen = open_scheduler(plan.with_extra_stage(1000), tmp_path).searches["triplet"].sampler.trials
    assert [t.state for t in seen] == [t.state for t in recorded]


def test_tpe_sees_stopped_trials_with_the_epoch_they_reached(tmp_path: Path) -> None:
    """It sees the same after a resume, although learning curves are not kept in memory."""
    stop = {"grace_epochs": 1, "reduction": 2}
    search = {"sampler": "tpe", "trials": 14, "stop_early": stop}
    plan = make_plan(losses=["triplet"], search=search)
    scheduler = open_scheduler(plan, tmp_path)
    simulate_trials(scheduler, slots=1)
    stopped = {
        job.point: outcome
        for trial in StudyJournal(tmp_path, plan.spaces).get_search_trials("triplet")
        if (outcome := outcome_from_trial(trial)) is not None and outcome.state == "stopped"
        for job in [job_from_trial(trial)]
    }
    assert stopped
    for study in (scheduler, open_scheduler(plan, tmp_path)):
        seen = study.searches["triplet"].sampler.trials
        pruned = {point_key("triplet", t.params): t for t in seen if t.state == TrialState.PRUNED}
        assert pruned.keys() == stopped.keys()
        for point, outcome in stopped.items():
            assert pruned[point].intermediate_values == {outcome.epochs: outcome.score}


def test_gp_sees_the_predicted_full_length_score_of_stopped_trials(tmp_path: Path) -> None:
    plan = make_plan(
        losses=["triplet"],
        search={"sampler": "gp", "trials": 14, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    )
    simulate_trials(open_scheduler(plan, tmp_path), slots=1)
    trials = load_optuna_study(tmp_path, "triplet").trials
    stopped = [t for t in trials if t.state == TrialState.PRUNED]
    assert stopped
    for trial in stopped:
        last = trial.intermediate_values[max(trial.intermediate_values)]
        assert trial.user_attrs["told"] > last


def test_gp_never_sees_the_raw_score_of_a_stopped_trial(tmp_path: Path) -> None:
    """It would look like a full-length score."""
    plan = make_plan(
        losses=["triplet"],
        search={"sampler": "gp", "trials": 14, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    )
    simulate_trials(open_scheduler(plan, tmp_path), slots=14)
    stopped = [
        t for t in load_optuna_study(tmp_path, "triplet").trials if t.state == TrialState.PRUNED
    ]
    assert stopped
    for trial in stopped:
        last = trial.intermediate_values[max(trial.intermediate_values)]
        assert trial.user_attrs.get("told") is None or trial.user_attrs["told"] > last


def test_cma_es_resumes_from_its_recorded_state(tmp_path: Path) -> None:
    """Late in a search its points depend on all earlier generations, not on the last scores."""
    search = {"sampler": "cmaes", "trials": 40, "repeats": 1, "stop_early": False}
    plan = make_plan(losses=["triplet"], search=search)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    uninterrupted = simulate_trials(open_scheduler(plan, tmp_path / "a"), slots=1)
    first = simulate_trials(open_scheduler(plan, tmp_path / "b"), slots=1, crash_after=250)
    rest = simulate_trials(open_scheduler(plan, tmp_path / "b"), slots=1)
    again = [job for job in rest if job.trial not in {j.trial for j in first}]
    assert 5 < len(again) < 35
    assert [j.identity_key for j in [*first, *again]] == [j.identity_key for j in uninterrupted]


def test_an_extended_grid_repeats_no_point(tmp_path: Path) -> None:
    search = {"sampler": "grid", "trials": 24, "repeats": 1, "sobol_share": 0.0}
    plan = make_plan(losses=["triplet"], search=search)
    first = simulate_trials(open_scheduler(plan, tmp_path), slots=1)
    more = simulate_trials(open_scheduler(plan.with_extra_stage(30), tmp_path), slots=1)
    chosen = [job.point for job in [*first, *more] if job.origin == "bayes"]
    assert len(set(chosen)) == len(chosen) == 53
