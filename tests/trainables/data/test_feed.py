"""Batch feeds give the same inputs on every device, without waits and uploads in a step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.pretend_device import count_device_work, pin, register_pretend_device
from trainables.data.augment import ImageTransform
from trainables.data.dataset import DatasetPart
from trainables.data.feed import (
    DeviceItemStore,
    EpochDraws,
    HostFeed,
    ResidentFeed,
    StagedFeed,
    draw_epoch,
    make_feed,
)
from trainables.distributed.world import rank_slice

pytestmark = pytest.mark.split

CPU, DEVICE = torch.device("cpu"), register_pretend_device()
LEVEL = 1 / 255
MEAN, STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def make_part(kind: str = "images", n: int = 40, *, aspects: bool = False) -> DatasetPart:
    rng = np.random.default_rng(0)
    # Every second row belongs to the part, as in a fold.
    items: Any = rng.random((2 * n, 6), dtype=np.float32)
    if kind == "images":
        items = rng.integers(0, 256, (2 * n, 20, 20, 3), dtype=np.uint8)
    ratios = rng.uniform(0.5, 2.0, 2 * n).astype(np.float32) if aspects else None
    labels = np.repeat(np.arange(n // 4), 4).astype(np.int64)
    return DatasetPart(items, labels, index=np.arange(0, 2 * n, 2), aspects=ratios)


def make_transform(preset: str, size: int = 16) -> ImageTransform:
    return ImageTransform(preset, size=size, mean=MEAN, std=STD)


def make_batches(n_batches: int = 4, size: int = 8) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    rng = np.random.default_rng(1)
    return [np.sort(rng.permutation(40)[:size]) for _ in range(n_batches)]


def draw(part: DatasetPart, transform: ImageTransform | None) -> EpochDraws:
    return draw_epoch(part, transform, make_batches(), torch.Generator().manual_seed(3))


@pytest.mark.parametrize("preset", ["none", "light", "papers"])
@pytest.mark.parametrize("aspects", [False, True])
def test_draws_of_an_epoch_are_those_of_its_steps(preset: str, aspects: bool) -> None:
    part, transform = make_part(aspects=aspects), make_transform(preset)
    feed = HostFeed(part, transform)
    inputs = list(feed.iter_training_inputs(draw(part, transform)))
    generator = torch.Generator().manual_seed(3)
    for batch, prepared in zip(make_batches(), inputs, strict=True):
        expected = transform.augment_images(
            part.read_items(batch), generator, aspects=part.read_aspects(batch)
        )
        assert torch.equal(prepared, expected)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_draw_what_one_process_draws(size: int) -> None:
    part, transform = make_part(aspects=True), make_transform("papers")
    single = list(HostFeed(part, transform).iter_training_inputs(draw(part, transform)))
    ranks = []
    for rank in range(size):
        own = draw_epoch(
            part,
            transform,
            make_batches(),
            torch.Generator().manual_seed(3),
            lambda n, rank=rank: rank_slice(n, rank, size),  # type: ignore[misc]
        )
        ranks.append(list(HostFeed(part, transform).iter_training_inputs(own)))
    for step, expected in enumerate(single):
        assert torch.equal(torch.cat([inputs[step] for inputs in ranks]), expected)


def make_resident(part: DatasetPart, transform: ImageTransform | None) -> ResidentFeed:
    feed = make_feed(part, transform, DEVICE, DeviceItemStore())
    assert isinstance(feed, ResidentFeed)
    return feed


def make_staged(part: DatasetPart, transform: ImageTransform | None) -> StagedFeed:
    return StagedFeed(part, transform, DEVICE)


@pytest.fixture(autouse=True)
def pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the buffers that CUDA would pin as pinned."""

    def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return pin(torch.empty(shape, dtype=dtype))

    monkeypatch.setattr("trainables.data.feed.allocate_pinned", allocate)


@pytest.mark.parametrize("make", [make_resident, make_staged])
@pytest.mark.parametrize("preset", ["none", "light", "papers", None])
@pytest.mark.parametrize("aspects", [False, True])
def test_inputs_on_a_device_are_those_of_the_host(
    make: Callable[..., Any], preset: str | None, aspects: bool
) -> None:
    kind = "features" if preset is None else "images"
    part = make_part(kind, aspects=aspects and preset is not None)
    transform = None if preset is None else make_transform(preset)
    host = HostFeed(part, transform)
    with count_device_work():
        feed = make(part, transform)
        trained = [x.cpu() for x in feed.iter_training_inputs(draw(part, transform))]
        evaluated = [x.cpu() for x in feed.iter_evaluation_inputs(make_batches())]
    tolerance = 0.0 if preset is None else 1.01 * LEVEL
    expected = [
        *host.iter_training_inputs(draw(part, transform)),
        *host.iter_evaluation_inputs(make_batches()),
    ]
    for ours, theirs in zip([*trained, *evaluated], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("preset", ["none", "light", "papers", None])
def test_a_step_from_resident_items_neither_waits_nor_uploads(preset: str | None) -> None:
    part = make_part("features" if preset is None else "images")
    transform = None if preset is None else make_transform(preset)
    with count_device_work() as counters:
        inputs = make_resident(part, transform).iter_training_inputs(draw(part, transform))
        next(inputs)
        counters.waits.clear()
        counters.uploads.clear()
        assert len(list(inputs)) == 3
    assert not counters.waits
    assert not counters.uploads


@pytest.mark.parametrize("preset", ["papers", None])
def test_a_step_from_staged_items_uploads_once_and_does_not_wait(preset: str | None) -> None:
    part = make_part("features" if preset is None else "images")
    transform = None if preset is None else make_transform(preset)
    with count_device_work() as counters:
        inputs = make_staged(part, transform).iter_training_inputs(draw(part, transform))
        next(inputs)
        counters.waits.clear()
        counters.uploads.clear()
        next(inputs)
        assert sum(counters.uploads.values()) == 1
        assert not counters.waits
        inputs.close()  # type: ignore[attr-defined]
    names = [thread.name for thread in threading.enumerate()]
    assert "staging" not in names, "an epoch that ends early ends its reader"


def test_items_are_uploaded_once_for_all_feeds() -> None:
    part, store = make_part(), DeviceItemStore()
    with count_device_work() as counters:
        make_feed(part, make_transform("papers"), DEVICE, store)
        uploaded = counters.uploaded_bytes
        assert uploaded >= part.items.nbytes
        make_feed(part, make_transform("papers"), DEVICE, store)
    assert counters.uploaded_bytes - uploaded < 10_000, "constants of the transform only"


def test_items_that_do_not_fit_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    part = make_part()
    module = torch.get_device_module(DEVICE)
    with count_device_work():
        monkeypatch.setattr(module, "total_bytes", 2 * part.items.nbytes, raising=False)
        assert isinstance(make_feed(part, None, DEVICE, DeviceItemStore()), StagedFeed)
        monkeypatch.setattr(module, "total_bytes", 3 * part.items.nbytes, raising=False)
        assert isinstance(make_feed(part, None, DEVICE, DeviceItemStore()), ResidentFeed)
        half = DeviceItemStore(memory_fraction=0.5)
        assert isinstance(make_feed(part, None, DEVICE, half), StagedFeed)
    assert isinstance(make_feed(part, None, CPU, DeviceItemStore()), HostFeed)


def test_an_error_of_the_reader_is_raised_where_its_batch_is_used() -> None:
    part = make_part("features")
    batches = [np.arange(4), np.array([10_000])]
    with count_device_work():
        inputs = make_staged(part, None).iter_evaluation_inputs(batches)
        with pytest.raises(IndexError):
            list(inputs)
