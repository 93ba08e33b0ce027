"""Devices of ranks: visible GPUs of a node, and one backend for all ranks."""

from __future__ import annotations

import pytest

from trainables.actors.rank_devices import (
    RankPlace,
    UnequalDevicesError,
    choose_backend,
    share_gpu_ids,
)

pytestmark = pytest.mark.split

GPUS = {"gpus_per_trial": 2, "ranks_per_trial": 2}
PLACES = [RankPlace("n1", "host-a", ("0",)), RankPlace("n2", "host-b", ("3",))]


def test_ranks_see_the_gpus_of_all_ranks_on_their_node() -> None:
    """Ray may hand out any GPUs, in any order; the order must be equal on all ranks of a node."""
    places = [
        RankPlace("n1", "host-a", ("10",)),
        RankPlace("n1", "host-a", ("2",)),
        RankPlace("n2", "host-b", ("5",)),
        RankPlace("n2", "host-b", ("4",)),
    ]
    assert share_gpu_ids(places) == [
        (("2", "10"), 1),
        (("2", "10"), 0),
        (("4", "5"), 1),
        (("4", "5"), 0),
    ]


def test_ranks_without_gpus_see_none() -> None:
    assert share_gpu_ids([RankPlace("n1", "host-a")] * 2) == [((), 0), ((), 0)]


@pytest.mark.parametrize(
    ("resources", "sees_gpu", "backend"),
    [
        (GPUS, [True, True], "nccl"),
        ({"gpus_per_trial": 0}, [True, True], "gloo"),
        ({"gpus_per_trial": 0}, [True, False], "gloo"),
        ({}, [False, False], "gloo"),
        (GPUS, [False, False], "gloo"),  # a torch build without CUDA; the study warns
    ],
)
def test_the_backend_follows_from_the_resources(
    resources: dict[str, int], sees_gpu: list[bool], backend: str
) -> None:
    assert choose_backend(resources, PLACES, sees_gpu) == backend


def test_ranks_that_see_different_devices_are_refused() -> None:
    with pytest.raises(UnequalDevicesError, match="GPU 3 on host-b") as caught:
        choose_backend(GPUS, PLACES, [True, False])
    assert "1 of 2" in str(caught.value)
    assert caught.value.faulty_gpu == "GPU 3 on host-b"
