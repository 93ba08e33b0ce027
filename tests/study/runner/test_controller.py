"""The desk keeps a study going, whatever a single trial does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from search_spaces.space import Float
from study.config.plan import Plan
from study.runner.controller import TrialController
from study.search.job_scheduler import (
    CRASHES_TO_FAIL,
    CRASHES_TO_ISOLATE,
    CRASHES_TO_SUSPECT,
    JobScheduler,
)
from tests.support.controllers import RecordingListener, open_controller
from tests.support.displays import RecordingDisplay
from tests.support.running_studies import write_features
from tests.support.scheduler_simulation import make_plan, open_scheduler
from trainables.actors.worker import TrialWorker
from trainables.config import TrialSpec
from trainables.training.checkpoints import checkpoint_path


def test_a_point_that_cannot_be_trained_fails_alone(tmp_path: Path) -> None:
    """A plan made by an older version may hold a range that this one refuses."""
    plan = make_plan(losses=["triplet"], search={"trials": 8, "sampler": "sobol", "repeats": 1})
    space = plan.spaces["triplet"].with_changes(search={"weight_decay": Float(-1.0, 1.0)})
    listener = RecordingListener()
    controller = open_controller(replace(plan, spaces={"triplet": space}), tmp_path, listener)
    started = []
    while (spec := controller.start_next_trial()) is not None:
        started.append(spec["settings"]["weight_decay"])
        result = {"state": "finished", "epoch": 9, "score": 0.5}
        assert controller.handle_result(spec["trial"], result)
    assert controller.scheduler.is_finished()
    assert min(started) >= 0
    failed = [o for o in listener.outcomes.values() if o.state == "failed"]
    assert 0 < len(failed) < 8
    assert len(started) + len(failed) == 8
    assert all("`weight_decay >= 0` must hold" in outcome.error for outcome in failed)


def test_a_score_that_is_no_number_has_diverged(tmp_path: Path) -> None:
    listener = RecordingListener()
    controller = open_controller(make_plan(losses=["triplet"]), tmp_path, listener)
    spec = controller.start_next_trial()
    assert spec is not None
    assert not controller.handle_result(
        spec["trial"], {"state": "running", "epoch": 1, "score": 0.5}
    )
    assert controller.handle_result(
        spec["trial"], {"state": "running", "epoch": 2, "score": float("nan")}
    )
    outcome = listener.outcomes[spec["trial"]]
    assert (outcome.state, outcome.epochs, outcome.error) == ("diverged", 1, "the score is nan")
    assert controller.start_next_trial() is not None


def test_a_trial_that_waits_for_a_slot_does_not_run(tmp_path: Path) -> None:
    controller = open_controller(make_plan(), tmp_path, RecordingListener())
    first, ahead = controller.start_next_trial(), controller.start_next_trial()
    assert first is not None
    assert ahead is not None
    assert controller.start_next_trial() is None
    assert list(controller.get_running_jobs()) == [first["trial"]]
    assert sum(p.running for p in controller.get_progress()) == 1
    assert controller.handle_result(first["trial"], {"state": "finished", "epoch": 9, "score": 0.5})
    assert list(controller.get_running_jobs()) == [ahead["trial"]]


def test_an_exception_in_the_data_fails_one_trial(tmp_path: Path) -> None:
    """The data of one trial cannot be read (a node without its disk); the others continue."""
    path = write_features(tmp_path)
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(path)},
        training={"epochs": 1, "batch_size": 32, "embedding_dim": 4},
        search={"trials": 4, "repeats": 1, "sampler": "sobol"},
    )
    listener = RecordingListener()
    controller = open_controller(plan, tmp_path, listener)
    trials: list[str] = []
    while (spec := controller.start_next_trial()) is not None:
        trials.append(spec["trial"])
        away = path.rename(tmp_path / "away") if len(trials) == 2 else None
        worker = TrialWorker()
        worker.assign_trial(TrialSpec.from_dict(spec))
        controller.handle_result(spec["trial"], worker.step())
        if away is not None:
            away.rename(path)
    assert controller.scheduler.is_finished()
    states = [listener.outcomes[trial].state for trial in trials]
    assert states == ["finished", "failed", "finished", "finished"]
    assert "features.npz" in listener.outcomes[trials[1]].error
    assert "Traceback" in (tmp_path / "errors" / f"{trials[1]}.txt").read_text()


def test_a_trial_that_cannot_be_built_again_keeps_its_epochs(tmp_path: Path) -> None:
    listener = RecordingListener()
    controller = open_controller(make_plan(losses=["triplet"]), tmp_path, listener)
    spec = controller.start_next_trial()
    assert spec is not None
    for epoch in (1, 2, 3):
        controller.handle_result(spec["trial"], {"state": "running", "epoch": epoch, "score": 0.5})
    controller.handle_lost_process(spec["trial"])
    assert controller.start_next_trial() is not None
    controller.handle_result(
        spec["trial"], {"state": "failed", "epoch": 0, "error": "OSError: gone"}
    )
    assert listener.outcomes[spec["trial"]].epochs == 3


def test_a_limit_on_trials_at_once_is_kept(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], resources={"max_concurrent": 1})
    controller = open_controller(plan, tmp_path, RecordingListener())
    assert controller.start_next_trial() is not None
    assert controller.start_next_trial() is None, "Tune would start it, where resources allow"


@pytest.mark.parametrize("damage", ["cut short", "empty", "noise", "no mapping"])
def test_a_damaged_checkpoint_counts_as_none_and_is_said(tmp_path: Path, damage: str) -> None:
    """A trial continues from a file that a bad disk has damaged."""
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 3, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    display = RecordingDisplay()
    listener = RecordingListener()
    controller = open_controller(plan, tmp_path, listener, display=display)
    spec = controller.start_next_trial()
    assert spec is not None
    trial = spec["trial"]
    worker = TrialWorker()
    worker.assign_trial(TrialSpec.from_dict(spec))
    for _ in range(2):  # a checkpoint is written beside the next epoch
        controller.handle_result(trial, worker.step())
    worker.release_trial()
    path = checkpoint_path(tmp_path / "checkpoints", trial)
    whole = path.read_bytes()
    assert not display.warnings
    if damage == "no mapping":
        torch.save([1, 2], path)
    else:
        path.write_bytes({"cut short": whole[:-500], "empty": b"", "noise": b"x" * 999}[damage])
    controller.handle_lost_process(trial)
    assert controller.start_next_trial() is not None
    worker.assign_trial(TrialSpec.from_dict(spec))
    for _ in range(3):
        controller.handle_result(trial, worker.step())
    assert listener.outcomes[trial].state == "finished"
    assert listener.outcomes[trial].epochs == 3
    assert len(display.warnings) == 1, display.warnings
    assert f"{trial}: the checkpoint is damaged" in display.warnings[0]


def run_with_a_killer(
    controller: TrialController, killer: str, *, slots: int, waits: bool = False
) -> list[str]:
    """Trials train, `slots` at once, until all have ended or the killer's start ends the run.

    Return them in the order of their starts. Those beside the killer have finished no epoch by then
    if it `waits` until they have started.
    """
    live: list[str] = []
    tried: list[str] = []
    while True:
        while len(live) < slots and (spec := controller.start_next_trial()) is not None:
            live.append(spec["trial"])
            tried.append(spec["trial"])
            if spec["trial"] == killer and not waits:
                return tried
        if killer in live or not live:
            return tried
        controller.handle_result(live.pop(0), {"state": "finished", "epoch": 9, "score": 0.5})


@pytest.mark.parametrize(("slots", "waits"), [(1, False), (3, False), (3, True)])
def test_a_trial_that_takes_its_run_with_it_comes_last_and_is_given_up(
    tmp_path: Path, slots: int, waits: bool
) -> None:
    """A run that dies writes nothing more: the record holds what it held when a trial started."""
    plan = make_plan(losses=["triplet"], resources={"max_concurrent": slots})
    listener, display, killer = RecordingListener(), RecordingDisplay(), "triplet-0000"
    runs = []
    while True:
        controller = open_controller(plan, tmp_path, listener, display=display, slots=slots)
        runs.append(run_with_a_killer(controller, killer, slots=slots, waits=waits))
        if controller.scheduler.is_finished():
            break
    assert len(runs) == CRASHES_TO_FAIL + 1
    assert [run[0] == killer for run in runs[:CRASHES_TO_SUSPECT]] == [True] * CRASHES_TO_SUSPECT
    assert len(runs[CRASHES_TO_SUSPECT]) > plan.n_points / 2
    for number, run in enumerate(
        runs[CRASHES_TO_SUSPECT:CRASHES_TO_FAIL], start=CRASHES_TO_SUSPECT
    ):
        if number >= CRASHES_TO_ISOLATE or not waits:
            assert run[-1] == killer, "after all others"
    assert killer not in runs[CRASHES_TO_FAIL]
    failed = {trial: o for trial, o in listener.outcomes.items() if o.state == "failed"}
    assert list(failed) == [killer], "not the trials that ran at the same time"
    assert f"the run crashed {CRASHES_TO_FAIL} times before this trial" in failed[killer].error
    assert display.warnings == [f"{killer} has failed: {failed[killer].error}"]
    assert len(listener.outcomes) > plan.n_points


def suspects(plan: Plan, folder: Path, deaths: int) -> JobScheduler:
    """Return a study whose three trials were running when the run died `deaths` times."""
    folder.mkdir(exist_ok=True)
    scheduler = open_scheduler(plan, folder)
    for _ in range(3):
        job = scheduler.next_job()
        assert job is not None
        scheduler._journal.write_start_count(job.trial, deaths, 0)
    return open_scheduler(plan, folder)


def test_suspects_start_one_by_one_after_more_deaths(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 3, "repeats": 1})
    scheduler = suspects(plan, tmp_path / "few", CRASHES_TO_ISOLATE - 1)
    assert None not in [scheduler.next_job() for _ in range(3)]
    scheduler = suspects(plan, tmp_path / "many", CRASHES_TO_ISOLATE)
    for number in range(3):
        job = scheduler.next_job()
        assert job is not None
        assert scheduler.count_crashes(job.trial) == CRASHES_TO_ISOLATE
        assert scheduler.next_job() is None, number
        scheduler.report_score(job.trial, 1, 0.5)  # which clears it: the next may start beside it


def test_a_trial_that_repeats_epochs_is_not_to_blame(tmp_path: Path) -> None:
    """Its checkpoint was lost; what counts is that it trains, not that it says anything new."""
    plan = make_plan(losses=["triplet"], search={"trials": 1, "repeats": 1})
    scheduler = open_scheduler(plan, tmp_path)
    job = scheduler.next_job()
    assert job is not None
    for epoch in range(1, 8):
        scheduler.report_score(job.trial, epoch, 0.5)
    for run in range(CRASHES_TO_FAIL + 2):
        scheduler = open_scheduler(plan, tmp_path)
        assert scheduler.next_job() == job
        assert scheduler.count_crashes(job.trial) <= 1, run
        scheduler.report_score(job.trial, 3, 0.5)  # of the checkpoint
        scheduler.report_score(job.trial, 4, 0.5)
    for run in range(3):
        scheduler = open_scheduler(plan, tmp_path)
        assert scheduler.next_job() == job
        assert scheduler.count_crashes(job.trial) == run
        scheduler.report_score(job.trial, 7, 0.5)  # of the checkpoint, and no more


def test_a_suspect_that_lost_its_process_is_not_blamed_for_an_end_in_order(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 3, "repeats": 1})
    scheduler = suspects(plan, tmp_path, CRASHES_TO_SUSPECT)
    for _ in range(CRASHES_TO_FAIL):
        job = scheduler.next_job()
        assert job is not None
        assert scheduler.count_crashes(job.trial) == CRASHES_TO_SUSPECT
        scheduler.requeue_trial(job.trial)
        scheduler.clear_crash_counts()
        scheduler = open_scheduler(plan, tmp_path)


@pytest.mark.parametrize("what", ["ctrl-C", "progress", "lost processes"])
def test_pauses_are_not_the_trials_fault(tmp_path: Path, what: str) -> None:
    """However often a study is stopped, and however often a trial's node goes."""
    plan, listener = make_plan(losses=["triplet"]), RecordingListener()
    for epoch in range(1, CRASHES_TO_FAIL + 3):
        controller = open_controller(plan, tmp_path, listener)
        spec = controller.start_next_trial()
        assert spec is not None
        assert spec["trial"] == "triplet-0000", "it comes first as ever"
        if what == "progress":
            controller.handle_result(
                spec["trial"], {"state": "running", "epoch": epoch, "score": 0.5}
            )
            continue
        if what == "lost processes":
            controller.handle_lost_process(spec["trial"])
        controller.scheduler.clear_crash_counts()
    assert not listener.outcomes


def test_a_pause_clears_no_suspect(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 1, "repeats": 1})
    for runs in range(1, CRASHES_TO_FAIL + 1):
        for ending in ("pause", "death"):
            scheduler = open_scheduler(plan, tmp_path)
            job = scheduler.next_job()
            assert job is not None
            assert scheduler.count_crashes(job.trial) == runs - 1
            if ending == "pause":
                scheduler.clear_crash_counts()
