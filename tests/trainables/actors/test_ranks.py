"""The trial's actor and its ranks: what it makes of ranks that fail, hang or die."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainables.settings import TrialSpec
from trainables.worker import limit_gpu_memory

pytestmark = pytest.mark.ray


class Troubled:
    """A rank that does what the trial's name says: `fail`, `die`, `lose` or `go on`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.trial = rank, ""

    def meeting_point(self) -> tuple[str, int]:
        return "", 0

    def join(self, address: str, port: int) -> None:
        return None

    def start(self, spec: Mapping[str, Any]) -> None:
        self.trial = spec["trial"]

    def step(self) -> dict[str, Any]:
        if self.trial == "go on":
            return {"state": "running", "error": "", "rank": self.rank, "pid": os.getpid()}
        if self.rank == 0:  # waits for the others, as in an exchange
            time.sleep(600)
        if self.trial == "die":
            os._exit(1)
        state = {"fail": "failed", "lose": "lost"}[self.trial]
        return {"state": state, "error": f"rank {self.rank}", "rank": self.rank}


def act(rank_class: type[Any], trials: list[str]) -> list[Any]:
    """Steps of a group of two ranks, as a trial's actor in its placement group makes them."""
    from trainables import ranks

    ranks.GRACE_SECONDS = 1.0
    group = ranks.RankGroup({"ranks_per_trial": 2, "cpus_per_trial": 1}, rank_class)
    found = []
    for trial in trials:
        spec = {"loss": "triplet", "loss_knobs": {}, "settings": {}, "seed": 0, "recall_at": [1]}
        spec |= {"dataset": {}, "backbone": {}, "cache_dir": "", "trial": trial}
        group.start(TrialSpec.from_dict(spec))
        try:
            found.append(group.step())
        except ranks.RanksLostError as error:
            found.append({"state": "raised", "error": str(error)})
        found[-1]["left"] = len(group._actors)
    group.close()
    return found


def test_ranks_that_fail_hang_or_die(shared_ray: None) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundles = placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(bundles, placement_group_capture_child_tasks=True)
    task = ray.remote(act).options(num_cpus=0, scheduling_strategy=strategy)
    trials = ["go on", "go on", "fail", "die", "lose"]
    found = ray.get(task.remote(Troubled, trials), timeout=120)
    remove_placement_group(bundles)
    states = [report["state"] for report in found]
    assert states == ["running", "running", "failed", "raised", "raised"]
    assert found[0]["pid"] == found[1]["pid"], "reused while all goes well"
    assert found[2]["error"] == "rank 1"
    assert "died" in found[3]["error"]
    assert [report["left"] for report in found] == [2, 2, 0, 0, 0]


def test_ranks_wait_for_one_that_still_decodes_its_data() -> None:
    """Longer than torch would: minutes on nccl, half an hour on gloo."""
    import torch.distributed as dist

    from trainables.ranks import Rank

    rank = Rank(0, 1)
    rank.join(*rank.meeting_point())
    try:
        group = dist.group.WORLD
        assert group is not None
        backend = group._get_backend(torch.device("cpu"))
        assert backend.options._timeout >= timedelta(hours=1)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("gib", "expected"), [(24, (6 - 0.625) / 24), (2, 0.125)])
def test_parts_of_a_gpu_leave_room_for_what_cuda_takes(
    monkeypatch: pytest.MonkeyPatch, gib: int, expected: float
) -> None:
    """Four quarters and four contexts fit; of a tiny GPU tensors still get half of the part."""
    given: list[float] = []
    gpu = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    limit_gpu_memory({"gpus_per_trial": 0.25, "ranks_per_trial": 1})
    limit_gpu_memory({"gpus_per_trial": 1, "ranks_per_trial": 1})
    limit_gpu_memory({"gpus_per_trial": 2, "ranks_per_trial": 2})
    limit_gpu_memory({})
    assert given == pytest.approx([expected])


def test_ranks_whose_device_is_broken_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a device-side assert on all of them, none could train another trial."""
    from trainables.ranks import RankGroup

    group = RankGroup({"ranks_per_trial": 2})
    group._actors = [object(), object()]
    done: list[str] = []
    monkeypatch.setattr(group, "close", lambda: done.append("closed"))
    monkeypatch.setattr(group, "_join", lambda: done.append("joined"))
    for broken in (True, False):
        report = {"state": "failed", "error": "CUDA error", "broken": broken}
        assert group._verdict({0: dict(report), 1: dict(report)})["state"] == "failed"
    assert done == ["closed", "joined"]
