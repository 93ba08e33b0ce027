"""Ranks of a trial: the trial's actor handles ranks that fail, hang or die."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import torch

from trainables.config import TrialSpec

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


class ScriptedRank:
    """A rank that does what the trial's name says: `fail`, `die`, `lose` or `run`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.trial = rank, ""

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
        state = {"fail": "failed", "lose": "lost"}[self.trial]
        return {"state": state, "error": f"rank {self.rank}", "rank": self.rank}


def step_through(rank_class: type[Any], trials: list[str]) -> list[Any]:
    """Step a group of two ranks through trials, like a trial's actor in its placement group."""
    from trainables.actors import ranks

    ranks.RANK_GRACE_SECONDS = 1.0
    group = ranks.RankGroup({"ranks_per_trial": 2, "cpus_per_trial": 1}, rank_class)
    results = []
    for trial in trials:
        spec = {"loss": "triplet", "loss_knobs": {}, "settings": {}, "seed": 0, "recall_at": [1]}
        spec |= {"dataset": {}, "backbone": {}, "cache_dir": "", "trial": trial}
        group.assign_trial(TrialSpec.from_dict(spec))
        try:
            results.append(group.step())
        except ranks.RanksLostError as error:
            results.append({"state": "raised", "error": str(error)})
        results[-1]["left"] = len(group._actors)
    group.close()
    return results


def test_ranks_that_fail_hang_or_die(shared_ray: None) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundles = placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(bundles, placement_group_capture_child_tasks=True)
    task = ray.remote(step_through).options(num_cpus=0, scheduling_strategy=strategy)
    trials = ["run", "run", "fail", "die", "lose"]
    results = ray.get(task.remote(ScriptedRank, trials), timeout=120)
    remove_placement_group(bundles)
    states = [report["state"] for report in results]
    assert states == ["running", "running", "failed", "raised", "raised"]
    assert results[0]["pid"] == results[1]["pid"], "ranks are reused unless one fails"
    assert results[2]["error"] == "rank 1"
    assert "died" in results[3]["error"]
    assert [report["left"] for report in results] == [2, 2, 0, 0, 0]


def test_ranks_wait_for_one_that_still_decodes_its_data() -> None:
    """torch's defaults are too short: ten minutes on nccl, half an hour on gloo."""
    import torch.distributed as dist

    from trainables.actors.ranks import RankActor

    rank = RankActor(0, 1)
    rank.join_process_group(*rank.open_rendezvous())
    try:
        group = dist.group.WORLD
        assert group is not None
        backend = group._get_backend(torch.device("cpu"))
        assert backend.options._timeout >= timedelta(hours=1)
    finally:
        dist.destroy_process_group()


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


def test_the_interface_of_an_address_is_found() -> None:
    from trainables.actors.ranks import find_network_interface

    loopback = find_network_interface("127.0.0.1")
    assert loopback is not None
    assert loopback.startswith("lo")
    assert find_network_interface("203.0.113.1") is None


def test_ranks_require_a_placement_group(shared_ray: None) -> None:
    from tests.support.trial_specs import make_spec
    from trainables.actors.ranks import RankGroup

    group = RankGroup({"ranks_per_trial": 2}, ScriptedRank)
    group.assign_trial(make_spec("triplet"))
    with pytest.raises(RuntimeError, match="placement group"):
        group.step()
