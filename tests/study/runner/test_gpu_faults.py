"""GPU faults of a run: which GPUs are avoided, and what becomes of the trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from study.runner.controller import TrialController
from study.runner.failure_policy import MAX_LOST_PROCESSES
from study.runner.gpu_faults import HOLDER_TIMEOUT_SECONDS, MAX_GPU_FAULTS, GpuFaults
from tests.support.controllers import RecordingListener, open_controller
from tests.support.displays import RecordingDisplay
from tests.support.scheduler_simulation import make_plan

HARDWARE, KERNEL = True, False
HELD = {"state": "held", "epoch": 0}


def make_fault(gpu: str, *, is_certain: bool, pid: int = 1) -> dict[str, Any]:
    """Return what an actor reports after a fault of its GPU; Tune adds the process."""
    error = "CUDA error: uncorrectable ECC error" if is_certain else "CUDA error: unknown error"
    fault = {"state": "lost", "epoch": 0, "error": error, "faulty_gpu": gpu, "pid": pid}
    return {**fault, "hardware_fault": is_certain, "refuses_next_trial": True, "hostname": "h"}


def start_trial(controller: TrialController) -> str:
    spec = controller.start_next_trial()
    assert spec is not None
    return str(spec["trial"])


def test_a_gpu_is_avoided_after_repeated_faults() -> None:
    faults = GpuFaults()
    faults.record_fault("a", "t1")
    faults.record_fault("b", "t1")
    assert not faults.is_avoided("a")
    faults.record_fault("a", "t2")
    assert faults.is_avoided("a")
    assert not faults.is_avoided("b")
    faults.forgive_faults("t1")
    assert not faults.is_avoided("a")


def test_a_holder_that_is_silent_is_gone() -> None:
    now = 0.0
    faults = GpuFaults(lambda: now)
    faults.record_holder("h:1")
    faults.record_holder("h:2")
    faults.record_holder("h:2")
    assert faults.count_holders() == 2
    faults.remove_holder("h:1")
    assert faults.count_holders() == 1
    now = HOLDER_TIMEOUT_SECONDS + 1
    assert faults.count_holders() == 0


def test_the_process_with_the_last_fault_holds_the_gpu_until_the_run_ends(tmp_path: Path) -> None:
    listener, display = RecordingListener(), RecordingDisplay()
    plan = make_plan(losses=["triplet"], search={"trials": 3, "repeats": 1, "stop_early": False})
    controller = open_controller(plan, tmp_path, listener, display=display, slots=3)
    for number in range(1, MAX_GPU_FAULTS + 1):
        trial = start_trial(controller)
        fault = make_fault("GPU 3 on h", is_certain=HARDWARE)
        is_free = controller.handle_result(trial, fault)
        assert is_free == (number < MAX_GPU_FAULTS)
    assert "GPU 3 on h" in display.warnings[-1]
    assert ["not used any more" in text for text in display.warnings] == [False, True]
    held = {**HELD, "faulty_gpu": "GPU 3 on h", "pid": 1, "hostname": "h"}
    assert not controller.handle_result(trial, held)
    running = [start_trial(controller) for _ in range(3)]
    assert controller.start_next_trial() is None
    assert len(controller.get_running_jobs()) == 2, "one of three slots is held"
    for trial in running:
        assert controller.handle_result(trial, {"state": "finished", "epoch": 9, "score": 0.5})
    assert controller.scheduler.is_finished()
    assert controller.handle_result(trial, held), "the run ends, and the process with it"
    assert [o.state for o in listener.outcomes.values()] == ["finished"] * 3


def test_hardware_faults_never_fail_a_trial(tmp_path: Path) -> None:
    """A trial meets one broken GPU after the other."""
    listener = RecordingListener()
    plan = make_plan(losses=["triplet"])
    controller = open_controller(plan, tmp_path, listener, slots=100)
    for number in range(4 * MAX_LOST_PROCESSES):
        trial = start_trial(controller)
        assert trial == "triplet-0000"
        fault = make_fault(f"GPU {number // MAX_GPU_FAULTS}", is_certain=HARDWARE, pid=number)
        controller.handle_result(trial, fault)
    assert not listener.outcomes
    assert controller.stop_reason == ""


def test_faults_that_follow_a_trial_are_its_own_and_free_the_gpus(tmp_path: Path) -> None:
    """A kernel fails on the point's sizes on every GPU; the trial had completed an epoch before."""
    listener = RecordingListener()
    controller = open_controller(make_plan(losses=["triplet"]), tmp_path, listener, slots=8)
    trial = start_trial(controller)
    controller.handle_result(trial, {"state": "running", "epoch": 1, "score": 0.5})
    holders = []
    for number in range(MAX_LOST_PROCESSES + 1):
        gpu = f"GPU {number // MAX_GPU_FAULTS}"
        fault = make_fault(gpu, is_certain=KERNEL, pid=number)
        if not controller.handle_result(trial, fault):
            holders.append({**HELD, "faulty_gpu": gpu, "pid": number, "hostname": "h"})
        if trial not in listener.outcomes:
            assert start_trial(controller) == trial
    outcome = listener.outcomes[trial]
    assert (outcome.state, outcome.epochs) == ("failed", 1)
    assert "unknown error (GPU 2)" in outcome.error
    assert len(holders) == 2
    assert all(controller.handle_result(trial, held) for held in holders), "they are used again"


@pytest.mark.parametrize("is_certain", [HARDWARE, KERNEL])
def test_the_run_stops_when_the_last_gpu_is_avoided(tmp_path: Path, is_certain: bool) -> None:
    """The trial stays open; if it does the same after a resume, a kernel's fault is its own."""
    listener = RecordingListener()
    for run in range(2):
        controller = open_controller(make_plan(losses=["triplet"]), tmp_path, listener, slots=1)
        for number in range(MAX_GPU_FAULTS):
            assert controller.stop_reason == ""
            trial = start_trial(controller)
            assert trial == "triplet-0000"
            assert controller.handle_result(trial, make_fault("GPU 0", is_certain=is_certain)), (
                number
            )
        is_own = run == 1 and is_certain is KERNEL
        assert (trial in listener.outcomes) == is_own
        assert bool(controller.stop_reason) != is_own
        if not is_own:
            assert "GPU 0" in controller.stop_reason
            assert controller.start_next_trial() is None
    if is_certain is KERNEL:
        assert listener.outcomes[trial].state == "failed"
        assert start_trial(controller) != trial, "the study continues"


def test_a_process_that_refuses_a_trial_does_not_count_against_it(tmp_path: Path) -> None:
    """A process with a broken context is given the next trial, by Tune, before it is replaced."""
    listener = RecordingListener()
    controller = open_controller(make_plan(losses=["triplet"]), tmp_path, listener, slots=9)
    faulty, victim = (start_trial(controller) for _ in range(2))
    for trial in (faulty, victim):
        controller.handle_result(trial, {"state": "running", "epoch": 1, "score": 0.5})
    for number in range(3 * MAX_LOST_PROCESSES):
        fault = make_fault(f"GPU {number}", is_certain=HARDWARE, pid=number)
        controller.handle_result(faulty, fault)
        controller.handle_lost_process(victim)
        assert {start_trial(controller) for _ in range(2)} == {faulty, victim}
    assert not listener.outcomes
    for _ in range(MAX_LOST_PROCESSES):
        controller.handle_lost_process(victim)
        assert start_trial(controller) == victim
    controller.handle_lost_process(victim)
    assert listener.outcomes[victim].state == "failed", "true losses still count"


def test_the_stacks_of_a_stalled_trial_are_kept(tmp_path: Path) -> None:
    controller = open_controller(make_plan(losses=["triplet"]), tmp_path)
    trial = start_trial(controller)
    stall = {"state": "lost", "epoch": 0, "error": "no rank", "traceback": "rank 0:\nin all_gather"}
    assert controller.handle_result(trial, stall)
    assert "in all_gather" in (tmp_path / "errors" / f"{trial}.txt").read_text()
