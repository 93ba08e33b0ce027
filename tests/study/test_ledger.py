"""The ledger hands out the right jobs, tells Optuna the truth, and survives."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from search_spaces.scale import to_unit
from study.errors import StudyError
from study.jobs import Job, Outcome, point_key
from study.plan import Plan
from study.requests import confirm_jobs, sweep_jobs, sweep_values
from study.table import State
from study.tuning.gaussian import MOST_POINTS
from study.tuning.ledger import Ledger
from study.tuning.record import Record, job_of, outcome_of
from study.tuning.sampling import sobol_point
from tests.study.tuning_simulation import closeness, drive, make_plan, open_ledger


def optuna_study(directory: Path, name: str) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(directory / "optuna.journal")))
    return optuna.load_study(study_name=name, storage=storage)


def test_a_loss_goes_published_sobol_chosen_repeats_incumbent(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 10, "repeats": 3})
    jobs = drive(open_ledger(plan, tmp_path), slots=1)
    origins = [job.origin for job in jobs]
    assert origins[0] == "published"
    assert origins[1:5] == ["sobol"] * 4
    assert origins[5:10] == ["bayes"] * 5
    assert origins[10:] == ["repeat"] * 6
    repeated = [job.point for job in jobs[10:]]
    # The published point and one Sobol point, twice each; at last the incumbent.
    assert repeated[:4] == [jobs[0].point] * 2 + [jobs[1].point] * 2
    assert repeated[4] == repeated[5]
    assert len(jobs) == plan.trials("triplet")
    assert len({job.trial for job in jobs}) == len(jobs)


def test_the_sampler_starts_early_and_space_is_filled_beside_it(tmp_path: Path) -> None:
    """At every moment the study has a good share of Sobol points, at its end the planned one."""
    plan = make_plan(losses=["triplet"], search={"trials": 40, "repeats": 1})
    first = drive(open_ledger(plan, tmp_path), slots=1)
    more = drive(open_ledger(plan.extended(20), tmp_path), slots=1)
    origins = [job.origin for job in first]
    assert origins[:10] == ["published"] + ["sobol"] * 5 + ["bayes"] * 3 + ["sobol"]
    assert Counter(origins) == {"published": 1, "sobol": 16, "bayes": 23}
    for end in range(6, 40):
        assert Counter(origins[:end])["sobol"] / end >= 1 / 3, end
    assert [job.origin for job in more[:4]] == ["bayes"] * 3 + ["sobol"]
    assert Counter(job.origin for job in more) == {"sobol": 8, "bayes": 12}
    sobol = [job.values for job in [*first, *more] if job.origin == "sobol"]
    space = plan.spaces["triplet"]
    assert sobol == [sobol_point(space, i, seed=0) for i in range(24)]


def test_a_slot_waits_for_the_incumbent_alone(tmp_path: Path) -> None:
    """Repeats that are known keep slots busy while the last points of the search end."""
    plan = make_plan(losses=["triplet"], search={"trials": 6, "repeats": 3})
    ledger, jobs = open_ledger(plan, tmp_path), []
    while (job := ledger.next_job()) is not None:
        jobs.append(job)
    assert Counter(job.origin for job in jobs)["repeat"] == 2
    assert len(jobs) == 8


def test_an_extension_keeps_every_slot_busy(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 6, "repeats": 2})
    drive(open_ledger(plan, tmp_path))
    longer = plan.extended(8)
    first: list[Job] = []
    ledger = open_ledger(longer, tmp_path)
    while len(first) < 3 and (job := ledger.next_job()) is not None:
        first.append(job)
    resumed, jobs = open_ledger(longer, tmp_path), []
    while (job := resumed.next_job()) is not None:
        jobs.append(job)
    assert jobs[:3] == first
    assert Counter(job.origin for job in jobs) == {"sobol": 3, "bayes": 5}


def test_a_stop_that_was_never_written_whole_is_not_told(tmp_path: Path) -> None:
    """The power went between the value for the sampler and the state; then the trial finished."""
    plan = make_plan(losses=["triplet"], search={"sampler": "gp", "trials": 6, "repeats": 1})
    ledger = open_ledger(plan, tmp_path)
    job = ledger.next_job()
    assert job is not None
    record = ledger._record
    record._storage.set_trial_user_attr(record._ids[job.trial], "told", 0.9)
    ledger.report(job.trial, 9, 0.2)
    ledger.end(job.trial, Outcome("finished", 9, 0.2))
    for study in (ledger, open_ledger(plan, tmp_path)):
        assert [t.value for t in study._losses["triplet"]._mirror._study.trials] == [0.2]


def test_a_sampler_that_knows_stopped_trials_is_told_no_other_value(tmp_path: Path) -> None:
    """`auto` turns from gp to tpe when a study becomes long; what gp was told is gp's."""
    search = {"trials": 14, "repeats": 1, "stop_early": {"grace_epochs": 1, "reduction": 2}}
    plan = make_plan(losses=["triplet"], search=search)
    drive(open_ledger(plan, tmp_path), slots=1)
    told = [t.user_attrs.get("told") for t in optuna_study(tmp_path, "triplet").trials]
    assert any(value is not None for value in told)
    seen = open_ledger(plan.extended(1000), tmp_path)._losses["triplet"]._mirror._study.trials
    states = [t.state for t in optuna_study(tmp_path, "triplet").trials]
    assert [t.state for t in seen] == states


def test_budgets_are_equal_and_losses_take_turns(tmp_path: Path) -> None:
    plan = make_plan()
    jobs = drive(open_ledger(plan, tmp_path))
    searched = Counter(job.loss for job in jobs if job.origin != "repeat")
    assert searched == {"proxy_anchor": 10, "triplet": 10}
    head = Counter(job.loss for job in jobs[:8])
    assert head == {"proxy_anchor": 4, "triplet": 4}


def test_told_states_are_true(tmp_path: Path) -> None:
    plan = make_plan(search={"stop_early": {"grace_epochs": 1, "reduction": 3}})

    def curve(job: Job, epoch: int) -> float:
        return math.nan if job.number == 2 and epoch == 3 else closeness(job, epoch)

    jobs = drive(open_ledger(plan, tmp_path), curve)
    study = optuna_study(tmp_path, "triplet")
    by_key = {t.user_attrs["job"]["trial"]: t for t in study.trials}
    states = Counter(t.state for t in study.trials)
    assert states[TrialState.RUNNING] == 0
    assert by_key["triplet-0002"].state == TrialState.FAIL
    assert by_key["triplet-0002"].intermediate_values.keys() == {1, 2}
    assert states[TrialState.PRUNED] > 0
    for trial in study.trials:
        last = max(trial.intermediate_values)
        if trial.state == TrialState.PRUNED:
            assert last < 9
            assert trial.user_attrs["job"]["origin"] == "bayes"
        if trial.state == TrialState.COMPLETE:
            assert last == 9
            assert trial.value == trial.intermediate_values[9]
    assert len(study.trials) == sum(j.loss == "triplet" and j.origin != "repeat" for j in jobs)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_repeat_that_failed_is_spent_like_a_point_that_failed(
    tmp_path: Path, resumed: bool
) -> None:
    """Budgets stay equal: no loss trains more often because its trials fail."""
    plan = make_plan(search={"trials": 4, "repeats": 3})
    ledger = open_ledger(plan, tmp_path)
    asked: list[Job] = []
    failed = 0
    while (job := ledger.next_job()) is not None:
        asked.append(job)
        bad = job.loss == "triplet" and job.origin == "repeat" and failed < 2
        failed += bad
        score = closeness(job, 9)
        ledger.end(
            job.trial, Outcome("failed", 0, math.nan) if bad else Outcome("finished", 9, score)
        )
        if bad and resumed:
            ledger = open_ledger(plan, tmp_path)
    assert ledger.is_finished()
    repeats = [job for job in asked if job.origin == "repeat"]
    assert len({job.identity for job in repeats}) == len(repeats), "none is asked again"
    assert {p.loss: p.failed for p in ledger.progress()} == {"proxy_anchor": 0, "triplet": 2}
    assert all(p.ended == p.planned for p in ledger.progress())
    for loss in plan.losses:
        points = Counter(job.point for job in repeats if job.loss == loss)
        assert set(points.values()) == {2}, "as many for each point as the plan says"


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "sobol", "grid", "cmaes"])
def test_the_record_says_how_it_is_searched(tmp_path: Path, sampler: str) -> None:
    search = {"sampler": sampler, "seed": 3, "stop_early": {"grace_epochs": 2, "reduction": 2}}
    open_ledger(make_plan(losses=["triplet"], search=search), tmp_path)
    said = optuna_study(tmp_path, "triplet").user_attrs["sampler"]
    assert (said["name"], said["seed"], said["stopped_at"]) == (sampler, 3, [2, 4, 8])
    assert said["foretold_at"] == [2, 3, 4, 6, 8]
    assert said["sobol"] == {"share": 0.4, "scrambled": True}
    assert ("n_startup_trials" in said) == (sampler in ("tpe", "gp", "cmaes"))
    if sampler == "gp":  # by its name alone it would pass for Optuna's
        assert said["model"] == "Gaussian process of dml-study"
        assert said["most_points"] == MOST_POINTS
        assert said["priors"].keys() == {"log_length", "log_signal", "log_noise"}
    if sampler == "tpe":
        assert said["multivariate"] is said["constant_liar"] is True


def test_an_extension_with_another_sampler_keeps_the_record_of_the_first(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"sampler": "auto", "trials": 10})
    open_ledger(plan, tmp_path)
    open_ledger(plan.extended(MOST_POINTS), tmp_path)
    said = optuna_study(tmp_path, "triplet").user_attrs
    assert said["sampler/1"]["name"] == "gp"
    assert said["sampler/2"]["name"] == said["sampler"]["name"] == "tpe"


def test_samplers_never_see_repeats(tmp_path: Path) -> None:
    plan = make_plan()
    drive(open_ledger(plan, tmp_path))
    origins = {t.user_attrs["job"]["origin"] for t in optuna_study(tmp_path, "triplet").trials}
    extra = {t.user_attrs["job"]["origin"] for t in optuna_study(tmp_path, "triplet/extra").trials}
    assert origins == {"published", "sobol", "bayes"}
    assert extra == {"repeat"}


@pytest.mark.parametrize(
    ("sampler", "crash_after"),
    [
        *(("tpe", moment) for moment in (1, 7, 20, 55, 90, 130)),
        *((name, 90) for name in ("random", "gp", "grid", "sobol", "cmaes")),
    ],
)
def test_a_crash_changes_no_suggestion(tmp_path: Path, crash_after: int, sampler: str) -> None:
    """With one slot the interrupted study runs exactly the points of the uninterrupted one."""
    plan = make_plan(losses=["triplet"], search={"sampler": sampler, "trials": 12})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = drive(open_ledger(plan, tmp_path / "a"), slots=1)
    first = drive(open_ledger(plan, tmp_path / "b"), slots=1, crash_after=crash_after)
    rest = drive(open_ledger(plan, tmp_path / "b"), slots=1)
    again = [job for job in rest if job.trial not in {j.trial for j in first}]
    assert [j.identity for j in [*first, *again]] == [j.identity for j in whole]
    # What was open at the crash came back first, under its old key.
    reopened = [job for job in rest if job.trial in {j.trial for j in first}]
    assert rest[: len(reopened)] == reopened
    keys = [t.user_attrs["job"]["trial"] for t in optuna_study(tmp_path / "b", "triplet").trials]
    assert len(keys) == len(set(keys)) == 12


def test_cma_es_goes_on_from_its_own_state(tmp_path: Path) -> None:
    """Late in a search its points depend on all generations before, not on the last scores."""
    search = {"sampler": "cmaes", "trials": 40, "repeats": 1, "stop_early": False}
    plan = make_plan(losses=["triplet"], search=search)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = drive(open_ledger(plan, tmp_path / "a"), slots=1)
    first = drive(open_ledger(plan, tmp_path / "b"), slots=1, crash_after=250)
    rest = drive(open_ledger(plan, tmp_path / "b"), slots=1)
    again = [job for job in rest if job.trial not in {j.trial for j in first}]
    assert 5 < len(again) < 35
    assert [j.identity for j in [*first, *again]] == [j.identity for j in whole]


def test_an_extended_grid_repeats_no_point(tmp_path: Path) -> None:
    search = {"sampler": "grid", "trials": 24, "repeats": 1, "sobol_share": 0.0}
    plan = make_plan(losses=["triplet"], search=search)
    first = drive(open_ledger(plan, tmp_path), slots=1)
    more = drive(open_ledger(plan.extended(30), tmp_path), slots=1)
    chosen = [job.point for job in [*first, *more] if job.origin == "bayes"]
    assert len(set(chosen)) == len(chosen) == 53


def test_no_trial_is_judged_while_another_may_still_warm_up(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], training={"epochs": 9, "warmup_epochs": [0, 3]})
    assert open_ledger(plan, tmp_path)._losses["triplet"]._rungs.milestones == [4]


def test_a_stop_that_was_decided_but_not_written_is_decided_again(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"stop_early": {"grace_epochs": 3}})
    drive(open_ledger(plan, tmp_path), lambda job, epoch: 0.5 + epoch / 100, slots=1)
    longer = plan.extended(2)
    ledger = open_ledger(longer, tmp_path)
    while (job := ledger.next_job()) is not None and job.origin != "bayes":
        ledger.report(job.trial, 9, 0.6)
        ledger.end(job.trial, Outcome("finished", 9, 0.6))
    assert job is not None
    assert not ledger.report(job.trial, 2, 0.1)
    assert ledger.report(job.trial, 3, 0.1)  # and the process dies here
    resumed = open_ledger(longer, tmp_path)
    same = resumed.next_job()
    assert same is not None
    assert same.trial == job.trial
    assert not resumed.report(job.trial, 2, 0.1)
    assert resumed.report(job.trial, 3, 0.1)


def test_rungs_are_rebuilt(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"stop_early": {"grace_epochs": 3}})
    ledger = open_ledger(plan, tmp_path)
    drive(ledger, slots=1)
    before = ledger._losses["triplet"]._rungs
    after = open_ledger(plan, tmp_path)._losses["triplet"]._rungs
    assert before.milestones == after.milestones == [3]
    assert before.scores_at(3) == after.scores_at(3)
    assert len(after.scores_at(3)) == 10


def test_an_epoch_counts_once(tmp_path: Path) -> None:
    ledger = open_ledger(make_plan(losses=["triplet"]), tmp_path)
    job = ledger.next_job()
    assert job is not None
    ledger.report(job.trial, 1, 0.5)
    ledger.report(job.trial, 1, 0.1)
    trial = optuna_study(tmp_path, "triplet").trials[0]
    assert trial.intermediate_values == {1: 0.5}
    ledger.end(job.trial, Outcome("failed", 1, math.nan, error="x"))
    ledger.end(job.trial, Outcome("finished", 9, 0.9))
    assert optuna_study(tmp_path, "triplet").trials[0].state == TrialState.FAIL


def test_extend_continues_sobol_and_ends_with_a_new_incumbent(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 10, "repeats": 2})
    first = drive(open_ledger(plan, tmp_path), slots=1)
    longer = plan.extended(10)
    ledger = open_ledger(longer, tmp_path)
    assert not ledger.is_finished()
    more = drive(ledger, slots=1)
    searched = [j for j in [*first, *more] if j.origin != "repeat"]
    assert len(searched) == 20
    sobol = [j for j in searched if j.origin == "sobol"]
    direct = make_plan(losses=["triplet"], search={"trials": 20, "repeats": 2})
    (tmp_path / "direct").mkdir()
    whole = drive(open_ledger(direct, tmp_path / "direct"), slots=1)
    assert [j.values for j in sobol] == [j.values for j in whole if j.origin == "sobol"]


def test_tpe_sees_stopped_trials_with_the_epoch_they_reached(tmp_path: Path) -> None:
    """And after a resume it sees the same, though learning curves are not held in memory."""
    stop = {"grace_epochs": 1, "reduction": 2}
    search = {"sampler": "tpe", "trials": 14, "stop_early": stop}
    plan = make_plan(losses=["triplet"], search=search)
    ledger = open_ledger(plan, tmp_path)
    drive(ledger, slots=1)
    stopped = {
        job.point: outcome
        for trial in ledger._record.searched("triplet")
        if (outcome := outcome_of(trial)) is not None and outcome.state == "stopped"
        for job in [job_of(trial)]
    }
    assert stopped
    for study in (ledger, open_ledger(plan, tmp_path)):
        seen = study._losses["triplet"]._mirror._study.trials
        pruned = {point_key("triplet", t.params): t for t in seen if t.state == TrialState.PRUNED}
        assert pruned.keys() == stopped.keys()
        for point, outcome in stopped.items():
            assert pruned[point].intermediate_values == {outcome.epochs: outcome.score}


def test_gp_is_told_a_full_length_value_of_stopped_trials(tmp_path: Path) -> None:
    plan = make_plan(
        losses=["triplet"],
        search={"sampler": "gp", "trials": 14, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    )
    drive(open_ledger(plan, tmp_path), slots=1)
    trials = optuna_study(tmp_path, "triplet").trials
    stopped = [t for t in trials if t.state == TrialState.PRUNED]
    assert stopped
    for trial in stopped:
        last = trial.intermediate_values[max(trial.intermediate_values)]
        assert trial.user_attrs["told"] > last


def test_gp_is_told_nothing_of_a_stopped_trial_while_none_has_finished(tmp_path: Path) -> None:
    """A raw early score would pass for a full-length one."""
    plan = make_plan(
        losses=["triplet"],
        search={"sampler": "gp", "trials": 14, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    )
    drive(open_ledger(plan, tmp_path), slots=14)
    stopped = [t for t in optuna_study(tmp_path, "triplet").trials if t.state == TrialState.PRUNED]
    assert stopped
    for trial in stopped:
        last = trial.intermediate_values[max(trial.intermediate_values)]
        assert trial.user_attrs.get("told") is None or trial.user_attrs["told"] > last


def test_test_scores_do_not_reach_the_search(tmp_path: Path) -> None:
    """Confirmed and then extended: what stopped trials are taken for is of validation alone."""
    search = {"sampler": "gp", "trials": 12, "stop_early": {"grace_epochs": 1, "reduction": 2}}
    told = []
    for lift in (0.0, 5.0):
        directory = tmp_path / str(lift)
        directory.mkdir()
        plan = make_plan(losses=["triplet"], search=search, protocol={"confirm_seeds": 2})
        drive(open_ledger(plan, directory), slots=1)
        jobs = confirm_jobs(plan, incumbents_of(plan, directory))

        def curve(job: Job, epoch: int, lift: float = lift) -> float:
            return closeness(job, epoch) + (lift * epoch if job.split == "test" else 0.0)

        drive(open_ledger(plan, directory, requests=jobs, search=False), curve)
        drive(open_ledger(plan.extended(8), directory), slots=1)
        trials = optuna_study(directory, "triplet").trials
        told.append([t.user_attrs.get("told") for t in trials if t.state == TrialState.PRUNED])
    assert told[0] == told[1]
    assert any(value is not None for value in told[0])


def incumbents_of(plan: Plan, directory: Path) -> dict[str, dict[str, float]]:
    ledger = open_ledger(plan, directory)
    found = {loss: ledger.incumbent(loss) for loss in plan.losses}
    return {loss: dict(job.values) for loss, job in found.items() if job}  # type: ignore[arg-type]


def test_requests_run_once(tmp_path: Path) -> None:
    plan = make_plan(protocol={"confirm_seeds": 2})
    drive(open_ledger(plan, tmp_path))
    requests = [
        *sweep_jobs(
            plan,
            incumbents_of(plan, tmp_path),
            knobs=["margin"],
            losses=plan.losses,
            values=3,
            seeds=2,
        ),
        *confirm_jobs(plan, incumbents_of(plan, tmp_path)),
    ]
    ran = drive(open_ledger(plan, tmp_path, requests=requests, search=False))
    assert len(ran) == len(requests)
    assert {j.split for j in ran if j.origin == "confirm"} == {"test"}
    assert {j.split for j in ran if j.origin == "sweep"} == {"validation"}
    again = drive(open_ledger(plan, tmp_path, requests=requests, search=False))
    assert again == []
    assert open_ledger(plan, tmp_path).search_is_finished()


@pytest.mark.parametrize(("state", "times"), [("failed", 2), ("diverged", 1)])
def test_a_request_that_failed_runs_again_when_it_is_asked_again(
    tmp_path: Path, state: State, times: int
) -> None:
    """A failure says nothing about the point; a divergence does. A resume asks for nothing."""
    plan = make_plan(losses=["triplet"], protocol={"confirm_seeds": 2})
    drive(open_ledger(plan, tmp_path))
    requests = confirm_jobs(plan, incumbents_of(plan, tmp_path))
    ledger = open_ledger(plan, tmp_path, requests=requests, search=False)
    bad = []
    while (job := ledger.next_job()) is not None:
        bad.append(job.trial)
        ledger.end(job.trial, Outcome(state, 0, math.nan, error="OSError: gone"))
    assert len(bad) == len(requests)
    assert open_ledger(plan, tmp_path).is_finished(), "a resume runs nothing"
    open_ledger(plan, tmp_path, requests=requests, search=False)  # and the power goes
    again = drive(open_ledger(plan, tmp_path))
    assert len(again) == (times - 1) * len(requests)
    assert not {job.trial for job in again} & set(bad)
    assert drive(open_ledger(plan, tmp_path, requests=requests, search=False)) == []


@pytest.mark.parametrize("crash_after", [1, 30])
def test_an_interrupted_sweep_is_continued_by_a_resume(tmp_path: Path, crash_after: int) -> None:
    plan = make_plan(losses=["triplet"], protocol={"confirm_seeds": 2})
    drive(open_ledger(plan, tmp_path))
    best = incumbents_of(plan, tmp_path)
    sweep = sweep_jobs(plan, best, knobs=["margin"], losses=plan.losses, values=3, seeds=1)
    requests = [*sweep, *confirm_jobs(plan, best)]
    first = drive(
        open_ledger(plan, tmp_path, requests=requests, search=False), crash_after=crash_after
    )
    reader = Ledger(plan, Record(tmp_path, plan.spaces))
    assert not reader.is_finished()
    assert {job.split for job in reader.waiting} == {"validation", "test"}
    rest = drive(open_ledger(plan, tmp_path))
    assert {j.identity for j in [*first, *rest]} == {j.identity for j in requests}
    assert len({j.trial for j in [*first, *rest]}) == len(requests)
    assert open_ledger(plan, tmp_path).is_finished()


def test_confirm_uses_fresh_seeds_common_to_all_points(tmp_path: Path) -> None:
    plan = make_plan(protocol={"confirm_seeds": 3})
    jobs = drive(open_ledger(plan, tmp_path))
    confirm = confirm_jobs(plan, incumbents_of(plan, tmp_path))
    used = {job.seed for job in jobs}
    by_point: dict[str, set[int]] = {}
    for job in confirm:
        by_point.setdefault(job.point, set()).add(job.seed)
    assert len(by_point) == 4
    assert len({frozenset(seeds) for seeds in by_point.values()}) == 1
    assert not used & {job.seed for job in confirm}


def test_sweeps_keep_all_but_one_knob() -> None:
    plan = make_plan()
    anchor = plan.example("proxy_anchor")
    jobs = sweep_jobs(plan, {}, knobs=["alpha"], losses=["proxy_anchor"], values=5, seeds=1)
    assert {j.anchor for j in jobs} == {"published"}
    values = sorted(float(j.values["alpha"]) for j in jobs)
    assert len(values) == len(set(values)) >= 5
    assert anchor["alpha"] in values
    for job in jobs:
        assert {k: v for k, v in job.values.items() if k != "alpha"} == {
            k: v for k, v in anchor.items() if k != "alpha"
        }


@pytest.mark.parametrize(("knob", "count"), [("proxy_lr", 7), ("delta", 7), ("alpha", 6)])
def test_a_sweep_trains_no_value_twice(knob: str, count: int) -> None:
    """A step of the range that falls on the anchor's value but for the last digit is that value."""
    plan = make_plan(losses=["proxy_anchor"])
    anchor = plan.example("proxy_anchor")
    values = sweep_values(plan, "proxy_anchor", knob, anchor[knob], count)
    places = to_unit(plan.spaces["proxy_anchor"].distributions[knob], values)
    assert anchor[knob] in values
    assert len(values) in (count, count + 1)
    assert np.diff(places).min() > 1e-3


def test_a_line_that_was_cut_short_is_mended(tmp_path: Path) -> None:
    """A power cut or a full disk may leave half a line; what was complete stays."""
    plan = make_plan(losses=["triplet"], search={"trials": 6, "repeats": 1})
    drive(open_ledger(plan, tmp_path), slots=1, crash_after=20)
    journal = tmp_path / "optuna.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:17])
    jobs = drive(open_ledger(plan, tmp_path), slots=1)
    assert jobs
    study = optuna_study(tmp_path, "triplet")
    assert len(study.trials) == 6
    assert all(t.state.is_finished() for t in study.trials)


def test_readers_write_nothing(tmp_path: Path) -> None:
    plan = make_plan()
    assert Record(tmp_path, plan.spaces).trials("triplet") == []
    assert list(tmp_path.iterdir()) == []
    drive(open_ledger(plan, tmp_path), crash_after=10)
    journal = tmp_path / "optuna.journal"
    before = journal.read_bytes()
    os.utime(journal, (1.0, 1.0))
    assert len(Record(tmp_path, plan.spaces).trials("triplet")) > 0
    assert journal.stat().st_mtime == 1.0, "who may only read the study may read it"
    other = make_plan(search={"sampler": "random"})  # as an older version would have described it
    assert not Ledger(other, Record(tmp_path, plan.spaces)).is_finished()
    assert (tmp_path / "optuna.journal").read_bytes() == before


@pytest.mark.parametrize("text", ["not json\n{}\n", '{"op_code": 99}\n', "[]\n"])
def test_a_damaged_journal_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "optuna.journal").write_text(text)
    with pytest.raises(StudyError, match="damaged"):
        Record(tmp_path, make_plan().spaces, writable=True)
    assert (tmp_path / "optuna.journal").read_text() == text
