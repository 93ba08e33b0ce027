"""Tune adapters: what Tune is given, and what it may pickle."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from study.runner.tune_adapters import (
    UPDATE_INTERVAL_SECONDS,
    ProcessLocalRef,
    TuneScheduler,
    TuneSearcher,
    UpdateCallback,
)
from tests.support.controllers import RecordingListener, open_controller
from tests.support.scheduler_simulation import make_plan

PLAN = {"losses": ["triplet"], "search": {"trials": 3, "repeats": 1, "stop_early": False}}


def tune_trial(config: dict[str, Any], trial_id: str = "") -> Any:
    return SimpleNamespace(config=config, trial_id=trial_id)


def test_trials_pass_from_the_searcher_through_the_scheduler(tmp_path: Path) -> None:
    listener = RecordingListener()
    controller = open_controller(make_plan(**PLAN), tmp_path, listener)
    searcher, scheduler = TuneSearcher(controller), TuneScheduler(controller)
    number = 0
    while not isinstance(config := searcher.suggest(f"t{number}"), str):
        assert config is not None
        running = {"state": "running", "epoch": 1, "score": 0.1}
        assert scheduler.on_trial_result(None, tune_trial(config), running) == (
            TrialScheduler.CONTINUE
        )
        last = {"state": "finished", "epoch": 9, "score": 0.5, "done": True}
        scheduler.on_trial_complete(None, tune_trial(config), last)
        searcher.on_trial_complete(f"t{number}", last)
        number += 1
    assert config == Searcher.FINISHED
    assert number == 3
    assert [o.state for o in listener.outcomes.values()] == ["finished"] * 3


def test_a_process_that_holds_a_gpu_and_dies_has_no_trial_to_lose(tmp_path: Path) -> None:
    """The study's trial was requeued with the fault and runs elsewhere under the same key."""
    controller = open_controller(make_plan(**PLAN), tmp_path, slots=2)
    searcher, scheduler = TuneSearcher(controller), TuneScheduler(controller)
    first = searcher.suggest("a")
    assert isinstance(first, dict)
    fault = {"state": "lost", "epoch": 0, "faulty_gpu": "GPU 0", "error": "ECC", "pid": 1}
    fault["hardware_fault"] = True
    assert scheduler.on_trial_result(None, tune_trial(first), fault) == TrialScheduler.STOP
    again = searcher.suggest("b")
    assert again == first
    assert scheduler.on_trial_result(None, tune_trial(first), fault) == TrialScheduler.CONTINUE
    searcher.on_trial_result("b", fault)
    assert searcher.suggest("c") == first
    held = {"state": "held", "epoch": 0, "faulty_gpu": "GPU 0", "pid": 1}
    assert scheduler.on_trial_result(None, tune_trial(first), held) == TrialScheduler.CONTINUE
    searcher.on_trial_complete("b", error=True)
    assert list(controller.scheduler.running_jobs) == [first["spec"]["trial"]], "c still runs"


def test_a_fault_that_tune_reports_again_counts_once(tmp_path: Path) -> None:
    """Tune completes a stopped trial later, when the study's trial may be running again."""
    controller = open_controller(make_plan(**PLAN), tmp_path, slots=2)
    searcher, scheduler = TuneSearcher(controller), TuneScheduler(controller)
    first = searcher.suggest("a")
    assert isinstance(first, dict)
    fault = {"state": "lost", "epoch": 0, "faulty_gpu": "GPU 0", "error": "ECC", "pid": 1}
    assert scheduler.on_trial_result(None, tune_trial(first, "a"), fault) == TrialScheduler.STOP
    assert searcher.suggest("b") == first
    scheduler.on_trial_complete(None, tune_trial(first, "a"), {**fault, "done": True})
    assert list(controller.scheduler.running_jobs) == [first["spec"]["trial"]]
    assert scheduler.on_trial_result(None, tune_trial(first, "b"), fault) == TrialScheduler.CONTINUE


def test_a_lost_process_is_retried(tmp_path: Path) -> None:
    controller = open_controller(make_plan(**PLAN), tmp_path)
    searcher = TuneSearcher(controller)
    first = searcher.suggest("a")
    assert isinstance(first, dict)
    searcher.on_trial_complete("a", error=True)
    assert searcher.suggest("b") == first


def test_pickles_and_copies_do_not_follow_the_controller() -> None:
    ref = ProcessLocalRef(object())
    assert pickle.loads(pickle.dumps(ref)).value is None
    assert copy.deepcopy(ref).value is ref.value


def test_the_update_is_called_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [100.0], []
    monkeypatch.setattr("study.runner.tune_adapters.time.monotonic", lambda: now[0])
    callback = UpdateCallback(lambda: calls.append(now[0]))
    for step in range(40):
        now[0] = 100.0 + step * UPDATE_INTERVAL_SECONDS / 4
        callback.on_step_end(step, [])
    assert len(calls) == 10
