"""Actor of a rank: its timeout, its device and its network interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.trial_specs import make_spec
from trainables.actors.rank_actor import RankActor, find_network_interface, set_network_interface

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankActor]:
    """A single rank in its process group."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # restored at the end
    rank = RankActor(0, 1)
    rank.join_process_group(*rank.open_rendezvous())
    yield rank
    dist.destroy_process_group()


def test_ranks_wait_for_one_that_still_decodes_its_data(rank: RankActor) -> None:
    """torch's defaults are too short: ten minutes on nccl, half an hour on gloo."""
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout >= timedelta(hours=1)


def test_a_rank_without_a_gpu_computes_on_the_cpu_even_if_torch_sees_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray hides GPUs from ranks without one only if the cluster is started with a variable."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    rank = RankActor(0, 1)
    rank.show_gpus((), 0)
    rank.set_backend("gloo")
    rank.join_process_group(*rank.open_rendezvous())
    try:
        assert dist.get_backend() == "gloo"
        assert rank._worker is not None
        assert rank._worker._world is not None
        assert rank._worker._world.device == torch.device("cpu")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("n_visible", "sees_own"), [(0, False), (1, False), (2, True)])
def test_a_rank_sees_the_gpus_of_its_node_and_uses_its_own(
    monkeypatch: pytest.MonkeyPatch, n_visible: int, sees_own: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: n_visible > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_visible)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    rank = RankActor(1, 2)
    assert rank.show_gpus(("4", "6"), 1) == sees_own
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,6"
    rank.set_backend("nccl")
    assert used == [torch.device("cuda", 1)]


def test_a_rank_is_timed_from_the_second_step_of_each_trial(rank: RankActor) -> None:
    assert rank.measure_progress() is None
    rank._heartbeat.beat()
    rank._heartbeat.beat()
    assert rank.measure_progress() is not None
    rank.assign_trial(make_spec("triplet").to_dict())
    assert rank.measure_progress() is None
    assert "pid" in rank.format_stacks()


def test_the_interface_of_an_address_is_found() -> None:
    loopback = find_network_interface("127.0.0.1")
    assert loopback is not None
    assert loopback.startswith("lo")
    assert find_network_interface("203.0.113.1") is None


def test_nccl_takes_the_interface_by_its_exact_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL takes eth1 for a prefix, so that eth10 would match; gloo takes names as they are."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    loopback = find_network_interface("127.0.0.1")
    set_network_interface("127.0.0.1")
    assert [os.environ[name] for name in VARIABLES] == [loopback, f"={loopback}"]
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    set_network_interface("127.0.0.1")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0", "the user's choice"
