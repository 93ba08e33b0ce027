"""Ranks of a trial: the trial's actor handles ranks that fail, hang or die."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_studies import write_features
from tests.support.trial_specs import make_spec
from trainables.actors.rank_actor import RankActor
from trainables.actors.rank_devices import RankPlace, choose_backend
from trainables.actors.ranks import RankGroup
from trainables.config import TrialSpec
from trainables.training.replica import ModelReplica

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


class ScriptedRank:
    """A rank that does what the trial's name says: `fail`, `die`, `lose`, `fault` or `run`."""

    sees_gpu = (True, True)

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.trial = rank, ""

    def find_place(self) -> RankPlace:
        return RankPlace("node", "host", (str(self.rank),))

    def show_gpus(self, visible_gpu_ids: Sequence[str], own_index: int) -> bool:
        return self.sees_gpu[self.rank]

    def set_backend(self, backend: str) -> None:
        return None

    def open_rendezvous(self) -> tuple[str, int]:
        return "", 0

    def join_process_group(self, address: str, port: int) -> None:
        return None

    def assign_trial(self, spec: Mapping[str, Any]) -> None:
        self.trial = spec["trial"]

    def step(self) -> dict[str, Any]:
        if self.trial == "run":
            return {"state": "running", "error": "", "rank": self.rank, "pid": os.getpid()}
        if self.rank == 0:  # waits for the other rank, as in an exchange
            time.sleep(600)
        if self.trial == "die":
            os._exit(1)
        state = {"fail": "failed", "lose": "lost", "fault": "lost"}[self.trial]
        report = {"state": state, "error": f"rank {self.rank}", "rank": self.rank}
        return {**report, "faulty_gpu": "GPU 1"} if self.trial == "fault" else report


class UnequalRank(ScriptedRank):
    """A rank that sees its GPU only if it is the first."""

    sees_gpu = (True, False)

    def join_process_group(self, address: str, port: int) -> None:
        time.sleep(600)  # nccl and gloo would wait for each other


class StallingRank(RankActor):
    """A rank of real trials; the second one hangs in its fourth step."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        steps: list[int] = []
        run_training_step = ModelReplica._run_training_step

        def run_or_hang(replica: ModelReplica, *args: Any) -> None:
            steps.append(len(steps))
            if rank == 1 and len(steps) == 4:
                hang_in_a_step()
            run_training_step(replica, *args)

        ModelReplica._run_training_step = run_or_hang  # type: ignore[assignment,method-assign]


def hang_in_a_step() -> None:
    time.sleep(600)


def step_through(rank_class: type[Any], specs: list[dict[str, Any]], n_gpus: int = 0) -> list[Any]:
    """Step a group of two ranks through trials, like a trial's actor in its placement group."""
    from trainables.actors import ranks, stall_monitor

    ranks.RANK_GRACE_SECONDS, ranks.PROGRESS_INTERVAL_SECONDS = 1.0, 0.5
    stall_monitor.STEP_TIMEOUT_SECONDS = 3.0
    group = ranks.RankGroup({"ranks_per_trial": 2, "cpus_per_trial": 1}, rank_class)
    results = []
    # The Ray of the tests has no GPUs, so the actors cannot ask for them.
    choose = functools.partial(choose_backend, {"gpus_per_trial": n_gpus})
    ranks.choose_backend = lambda resources, *args: choose(*args)  # type: ignore[attr-defined]
    for spec in specs:
        group.assign_trial(TrialSpec.from_dict(spec))
        try:
            results.append(group.step())
        except ranks.RanksLostError as error:
            results.append({"state": "raised", "error": str(error)})
        results[-1]["left"] = len(group._actors)
    group.close()
    return results


def run_ranks(rank_class: type[Any], specs: list[TrialSpec], n_gpus: int = 0) -> list[Any]:
    """Return the results of `step_through` in a placement group."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundles = placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(bundles, placement_group_capture_child_tasks=True)
    # max_calls: the process is not used again, because the task patches modules.
    task = ray.remote(max_calls=1)(step_through).options(num_cpus=0, scheduling_strategy=strategy)
    plain = [spec.to_dict() for spec in specs]
    results: list[Any] = ray.get(task.remote(rank_class, plain, n_gpus), timeout=120)
    remove_placement_group(bundles)
    return results


def test_ranks_that_fail_hang_or_die(shared_ray: None) -> None:
    trials = ["run", "run", "fail", "die", "lose", "fault"]
    results = run_ranks(ScriptedRank, [make_spec("triplet", trial=name) for name in trials])
    states = [report["state"] for report in results]
    assert states == ["running", "running", "failed", "raised", "raised", "lost"]
    assert results[0]["pid"] == results[1]["pid"], "ranks are reused unless one fails"
    assert results[2]["error"] == "rank 1"
    assert "died" in results[3]["error"]
    assert results[5]["faulty_gpu"] == "GPU 1", "the GPU of the rank that failed"
    assert [report["left"] for report in results] == [2, 2, 0, 0, 0, 0]


def test_ranks_that_see_different_devices_are_refused_at_once(shared_ray: None) -> None:
    """They would choose nccl and gloo, and wait for each other for two hours."""
    spec = make_spec("triplet", trial="run")
    (report,) = run_ranks(UnequalRank, [spec], n_gpus=2)
    assert (report["state"], report["left"]) == ("lost", 0)
    assert "1 of 2 do not (GPU 1 on host)" in report["error"]
    assert (report["faulty_gpu"], report["hardware_fault"]) == ("GPU 1 on host", True)


def test_a_stalled_rank_is_ended_within_the_step_timeout(shared_ray: None, tmp_path: Path) -> None:
    """Two ranks train with gloo; one hangs, the other waits for it in an exchange."""
    spec = make_spec(
        "triplet",
        dataset={"name": "arrays", "path": str(write_features(tmp_path))},
        backbone={"name": "none"},
        cache_dir=str(tmp_path),
    )
    started = time.monotonic()
    (report,) = run_ranks(StallingRank, [spec])
    assert time.monotonic() - started < 60
    assert (report["state"], report["left"]) == ("lost", 0), report
    assert "no rank completed a step for" in report["error"]
    first, second = report["traceback"].split("rank 1:")
    assert "in hang_in_a_step" in second
    assert "in hang_in_a_step" not in first
    assert "in all_gather" in first, "it waits for the other rank"


def test_ranks_whose_device_is_broken_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a device-side assert on all ranks, none could train another trial."""
    from trainables.actors.ranks import RankGroup

    group = RankGroup({"ranks_per_trial": 2})
    group._actors = [object(), object()]
    calls: list[str] = []
    monkeypatch.setattr(group, "close", lambda: calls.append("closed"))
    monkeypatch.setattr(group, "_form_process_group", lambda: calls.append("joined"))
    for broken in (True, False):
        report = {"state": "failed", "error": "CUDA error", "broken": broken}
        assert group._combine_reports({0: dict(report), 1: dict(report)})["state"] == "failed"
    assert calls == ["closed", "joined"]


def test_ranks_require_a_placement_group(shared_ray: None) -> None:
    from trainables.actors.ranks import RankGroup

    group = RankGroup({"ranks_per_trial": 2}, ScriptedRank)
    group.assign_trial(make_spec("triplet"))
    with pytest.raises(RuntimeError, match="placement group"):
        group.step()


class FullMemoryGroup(RankGroup):
    """Ranks whose memory suffices from some level on."""

    def __init__(self, sufficient_level: int) -> None:
        super().__init__({"ranks_per_trial": 2})
        self._sufficient_level = sufficient_level
        self.levels: list[int] = []

    def _run_step(self) -> dict[str, Any]:
        assert self._spec is not None
        level = int(self._spec.resources.get("memory_level", 0))
        self.levels.append(level)
        if level < self._sufficient_level:
            return {"state": "failed", "error": "out of memory", "out_of_memory": True}
        return {"state": "running", "error": ""}


@pytest.mark.parametrize(("sufficient", "state"), [(0, "running"), (3, "running"), (99, "failed")])
def test_ranks_that_run_out_of_memory_continue_with_less(sufficient: int, state: str) -> None:
    group = FullMemoryGroup(sufficient)
    group.assign_trial(make_spec("triplet"))
    assert group.step()["state"] == state
    assert group.levels == list(range(min(sufficient, 16) + 1))
    group.step()
    assert group.levels[-1] >= min(sufficient, 16), "the next epoch does not run out again"
    group.assign_trial(make_spec("triplet"))
    group.step()
    assert 0 in group.levels[len(group.levels) // 2 :], "the next trial begins with all memory"
