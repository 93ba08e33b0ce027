"""Circuit breaker: outages stop a run and cost no trial."""

from __future__ import annotations

from pathlib import Path

from study.runner.circuit_breaker import MAX_CONSECUTIVE_FAILURES
from study.runner.controller import TrialController
from tests.support.controllers import RecordingListener, open_controller
from tests.support.scheduler_simulation import make_plan


def all_fail(controller: TrialController, error: str = "OSError: gone") -> list[str]:
    """Every trial that is handed out fails before its first epoch; gives them in order."""
    tried = []
    while (spec := controller.start_next_trial()) is not None:
        tried.append(spec["trial"])
        assert controller.handle_result(
            spec["trial"], {"state": "failed", "epoch": 0, "error": error}
        )
    return tried


def finish(controller: TrialController) -> list[str]:
    """Every trial that is handed out trains; gives them in order."""
    tried = []
    while (spec := controller.start_next_trial()) is not None:
        tried.append(spec["trial"])
        controller.handle_result(spec["trial"], {"state": "finished", "epoch": 9, "score": 0.5})
    return tried


def test_an_outage_stops_the_run_and_costs_no_trial(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    listener = RecordingListener()
    controller = open_controller(plan, tmp_path, listener)
    before = controller.start_next_trial()
    assert before is not None
    controller.handle_result(before["trial"], {"state": "finished", "epoch": 9, "score": 0.5})
    tried = all_fail(controller)
    assert len(tried) == MAX_CONSECUTIVE_FAILURES
    assert (
        controller.stop_reason
        == "5 trials in a row failed before their first epoch (OSError: gone)"
    )
    assert list(listener.outcomes) == [before["trial"]], "the others are open"
    assert not controller.scheduler.is_finished()
    again = open_controller(plan, tmp_path, listener)
    rest = finish(again)
    assert rest[:MAX_CONSECUTIVE_FAILURES] == tried, "they come first"
    assert again.scheduler.is_finished()
    assert not again.stop_reason
    assert len(listener.outcomes) == 12
    assert {o.state for o in listener.outcomes.values()} == {"finished"}


def test_points_that_fail_again_after_a_stop_have_failed(tmp_path: Path) -> None:
    """The failures were those of the points: the study continues without them."""
    plan = make_plan(losses=["triplet"], search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    tried = all_fail(open_controller(plan, tmp_path, RecordingListener()))
    listener = RecordingListener()
    controller = open_controller(plan, tmp_path, listener)
    while (spec := controller.start_next_trial()) is not None:
        bad = spec["trial"] in tried
        error = {"state": "failed", "epoch": 0, "error": "ValueError: too large"}
        controller.handle_result(
            spec["trial"], error if bad else {"state": "finished", "epoch": 9, "score": 1}
        )
    assert controller.scheduler.is_finished()
    failed = [trial for trial, o in listener.outcomes.items() if o.state == "failed"]
    assert failed == tried


def test_a_study_whose_every_point_fails_ends_after_a_few_of_them(tmp_path: Path) -> None:
    """A bug in the data: each run says so, and none goes through the whole budget."""
    plan = make_plan(losses=["triplet"], search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    listener = RecordingListener()
    runs = 0
    while True:
        controller = open_controller(plan, tmp_path, listener)
        tried = all_fail(controller, "KeyError: 'labels'")
        runs += 1
        assert len(tried) <= 2 * MAX_CONSECUTIVE_FAILURES
        if controller.scheduler.is_finished():
            break
        assert "KeyError: 'labels'" in controller.stop_reason
    assert runs == 3
    assert [o.state for o in listener.outcomes.values()] == ["failed"] * 12


def test_failures_of_one_loss_are_its_own_once_another_trains(tmp_path: Path) -> None:
    """Nothing is started until it is known whether any trial trains; then the study continues."""
    plan = make_plan(search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    listener = RecordingListener()
    controller = open_controller(plan, tmp_path, listener)
    controller._count_slots = lambda: 20
    specs = [spec for _ in range(20) if (spec := controller.start_next_trial()) is not None]
    bad = [spec["trial"] for spec in specs if spec["loss"] == "triplet"]
    good = [spec["trial"] for spec in specs if spec["loss"] != "triplet"]
    for trial in bad:
        controller.handle_result(trial, {"state": "failed", "epoch": 0, "error": "ValueError: no"})
    assert len(bad) > MAX_CONSECUTIVE_FAILURES
    assert controller.start_next_trial() is None
    assert not controller.stop_reason, "others may still get going"
    assert not listener.outcomes
    controller.handle_result(good[0], {"state": "running", "epoch": 1, "score": 0.5})
    assert sorted(listener.outcomes) == sorted(bad)
    assert controller.start_next_trial() is not None


def test_a_trial_that_runs_on_hides_no_outage(tmp_path: Path) -> None:
    """It has its data in memory, so its epochs say nothing about those that start now."""
    controller = open_controller(
        make_plan(losses=["triplet"], search={"trials": 12}), tmp_path, RecordingListener()
    )
    spec = controller.start_next_trial()
    assert spec is not None
    epoch = 0
    while not controller.stop_reason:
        epoch += 1
        controller.handle_result(spec["trial"], {"state": "running", "epoch": epoch, "score": 0.5})
        other = controller.start_next_trial()
        assert other is not None
        controller.handle_result(
            other["trial"], {"state": "failed", "epoch": 0, "error": "OSError: gone"}
        )
    assert epoch == MAX_CONSECUTIVE_FAILURES
    assert not controller.handle_result(
        spec["trial"], {"state": "running", "epoch": epoch + 1, "score": 0.5}
    )
    assert controller.stop_reason
