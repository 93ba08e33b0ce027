"""Gradient buckets: the same sums as one exchange after backward, begun during backward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.support.mirrored_world import MirroredWorld
from tests.support.pretend_device import count_device_work, register_pretend_device
from tests.support.rank_pool import CPU, RankPool
from trainables.distributed.exchange import PendingExchange
from trainables.distributed.gradient_buckets import GradientBuckets, exchange_together
from trainables.distributed.world import SingleProcessWorld, World

pytestmark = pytest.mark.xdist_group("ranks")

DEVICE = register_pretend_device()
SMALL_BUCKET_BYTES = 300


class BranchedNet(nn.Module):
    """Network whose layers are used or not: `parts` names those of a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first, self.pointwise = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1)
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)
        self.unused = nn.Linear(2, 2)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)
        cast(Any, self).to(memory_format=torch.channels_last)

    def forward(self, images: Tensor, parts: Sequence[str]) -> Tensor:
        features = self.pointwise(self.first(images).tanh()).mean(dim=(2, 3))
        return torch.stack([self.get_submodule(part)(features).sin().sum() for part in parts]).sum()


def draw_images(world: World, step: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + world.rank)
    images = torch.randn(4, 3, 6, 6, generator=generator, dtype=dtype)
    return images.contiguous(memory_format=torch.channels_last)


def sum_after_backward(world: World, model: nn.Module) -> None:
    """Sum all gradients in one exchange of all of them, as a reference."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    world.all_reduce_sum_(flat)
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def copy_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def compute_in_both_ways(
    world: World, dtype: torch.dtype, bucket_bytes: int, micro_batches: int = 1
) -> list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]:
    """Return the gradients of some steps, with buckets and with one exchange after backward."""
    model = BranchedNet().to(dtype)
    buckets = GradientBuckets(model.parameters(), world, bucket_bytes=bucket_bytes)
    steps = []
    for step in range(4):
        images = draw_images(world, step, dtype).chunk(micro_batches)
        model.zero_grad(set_to_none=True)
        buckets.start()
        with buckets.accumulate():
            for part in images[:-1]:
                model(part, ["left", "right"]).backward()
        model(images[-1], ["left", "right"]).backward()
        buckets.finish()
        computed = copy_gradients(model)
        assert all(is_laid_out_like(p.grad, p) for p in model.parameters() if p.grad is not None)

        model.zero_grad(set_to_none=True)
        with buckets.accumulate():
            for part in images:
                model(part, ["left", "right"]).backward()
        sum_after_backward(world, model)
        steps.append((computed, copy_gradients(model)))
    return steps


def is_laid_out_like(gradient: Tensor, parameter: Tensor) -> bool:
    """Whether both have the same strides, which fused optimisers require."""
    return gradient.stride() == parameter.stride()


def assert_same_bits(some: dict[str, Tensor | None], others: dict[str, Tensor | None]) -> None:
    assert set(some) == set(others)
    for name, value in some.items():
        other = others[name]
        assert (value is None) == (other is None), name
        assert value is None or other is None or torch.equal(value, other), name


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("bucket_bytes", [1, SMALL_BUCKET_BYTES, 2**20])
def test_two_ranks_have_the_bits_of_one_exchange_after_backward(
    bucket_bytes: int, micro_batches: int, rank_pool: RankPool
) -> None:
    results = rank_pool.run(2, compute_in_both_ways, torch.float32, bucket_bytes, micro_batches)
    for step, (computed, expected) in enumerate(results[0]):
        assert computed["unused.weight"] is None
        assert computed["first.weight"] is not None
        assert_same_bits(computed, expected)
        assert_same_bits(results[1][step][0], computed)


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_agree_to_rounding_and_with_each_other_in_all_bits(
    size: int, rank_pool: RankPool
) -> None:
    """The order in which gloo adds more than two numbers depends on their place in the tensor."""
    results = rank_pool.run(size, compute_in_both_ways, torch.float64, SMALL_BUCKET_BYTES)
    for step, (computed, expected) in enumerate(results[0]):
        for name, value in expected.items():
            torch.testing.assert_close(computed[name], value, rtol=1e-12, atol=1e-13)
        for other in results[1:]:
            assert_same_bits(other[step][0], computed)


def train_with_missing_gradients(
    world: World, pattern: list[list[str]]
) -> list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]:
    """Use the named layers in step after step on the second rank, all on the others."""
    model = BranchedNet().double()
    buckets = GradientBuckets(model.parameters(), world, bucket_bytes=SMALL_BUCKET_BYTES)
    steps = []
    for step, parts in enumerate(pattern):
        used = parts if world.rank == 1 else ["left", "right"]
        model.zero_grad(set_to_none=True)
        buckets.start()
        images = draw_images(world, step, torch.float64)
        model(images, used).backward()
        own = copy_gradients(model)
        buckets.finish()
        steps.append((own, copy_gradients(model)))
    return steps


def test_a_gradient_that_a_rank_does_not_have_counts_as_zero(rank_pool: RankPool) -> None:
    pattern = [["left"], ["right"], ["left"], ["left", "right"], ["left", "right"]]
    results = rank_pool.run(2, train_with_missing_gradients, pattern)
    for step in range(len(pattern)):
        (first, summed), (second, also_summed) = (result[step] for result in results)
        assert_same_bits(summed, also_summed)
        for name, value in summed.items():
            parts = [own[name] for own in (first, second) if own[name] is not None]
            if not parts:
                assert value is None
            elif step < 4:  # afterwards gradients are exchanged during backward
                assert value is not None
                assert torch.equal(value, sum(parts[1:], parts[0]))


class RecordingWorld(SingleProcessWorld):
    """World whose exchanges of gradients are written to a list of events."""

    size = 2

    def __init__(self, events: list[Any]) -> None:
        super().__init__(CPU)
        self.events = events

    def start_all_reduce_sum(self, partial: Tensor) -> PendingExchange:
        self.events.append(("exchange", partial.numel()))
        return super().start_all_reduce_sum(partial)

    def all_gather_many(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.events.append("comparison")
        return [torch.stack([tensor, tensor]) for tensor in tensors]


def record_step(
    model: nn.Module, buckets: GradientBuckets, events: list[Any], parts: Sequence[str]
) -> list[Any]:
    events.clear()
    model.zero_grad(set_to_none=True)
    buckets.start()
    model(torch.ones(1, 3, 6, 6), parts).backward()
    events.append("end of backward")
    buckets.finish()
    return list(events)


def test_exchanges_begin_before_backward_ends() -> None:
    model, events = BranchedNet(), list[Any]()
    buckets = GradientBuckets(
        model.parameters(), RecordingWorld(events), bucket_bytes=SMALL_BUCKET_BYTES
    )
    cast(Any, model.first.weight).register_post_accumulate_grad_hook(
        lambda _: events.append("first layer")
    )
    learned = record_step(model, buckets, events, ["left", "right"])
    assert learned.index("end of backward") < learned.index("comparison")
    assert not [e for e in learned[: learned.index("end of backward")] if e[0] == "exchange"]
    events = record_step(model, buckets, events, ["left", "right"])
    sizes = [e[1] for e in events if e[0] == "exchange"]
    assert sum(sizes) == sum(p.numel() for p in model.parameters()) - 6
    assert "comparison" not in events
    assert len(sizes) >= 2
    started = [i for i, event in enumerate(events) if event[0] == "exchange"]
    assert started[0] < events.index("first layer")
    assert started[-1] < events.index("end of backward")


def test_nothing_is_sent_while_gradients_accumulate() -> None:
    model, events = BranchedNet(), list[Any]()
    buckets = GradientBuckets(model.parameters(), RecordingWorld(events), bucket_bytes=1)
    for _ in range(2):
        events.clear()
        model.zero_grad(set_to_none=True)
        buckets.start()
        with buckets.accumulate():
            model(torch.ones(1, 3, 6, 6), ["left", "right"]).backward()
        assert not events
        # The last pass does not reach all layers that the earlier ones did.
        model(torch.ones(1, 3, 6, 6), ["left"]).backward()
        buckets.finish()
        assert len([e for e in events if e[0] == "exchange"]) == 8


def test_a_second_backward_without_accumulate_is_refused() -> None:
    model = BranchedNet()
    buckets = GradientBuckets(model.parameters(), RecordingWorld([]), bucket_bytes=1)
    record_step(model, buckets, [], ["left"])
    buckets.start()
    model.zero_grad(set_to_none=True)
    model(torch.ones(1, 3, 6, 6), ["left"]).backward()
    with pytest.raises(RuntimeError, match="`accumulate`"):
        model(torch.ones(1, 3, 6, 6), ["left"]).backward()


def test_a_step_that_was_not_started_is_refused() -> None:
    model = BranchedNet()
    buckets = GradientBuckets(model.parameters(), RecordingWorld([]))
    record_step(model, buckets, [], ["left"])
    with pytest.raises(RuntimeError, match=r"`GradientBuckets.start`"):
        buckets.finish()


def test_other_gradients_than_in_the_first_step_are_refused() -> None:
    model = BranchedNet()
    buckets = GradientBuckets(model.parameters(), RecordingWorld([]), bucket_bytes=1)
    record_step(model, buckets, [], ["left"])
    with pytest.raises(RuntimeError, match=r"same parameters.*requires_grad"):
        record_step(model, buckets, [], ["left", "right"])
    with pytest.raises(RuntimeError, match=r"same parameters.*requires_grad"):
        record_step(model, buckets, [], ["right"])
    record_step(model, buckets, [], ["left"])  # the failed steps are forgotten


def test_parameters_can_be_frozen_and_released_between_steps() -> None:
    model, events = BranchedNet(), list[Any]()
    buckets = GradientBuckets(model.parameters(), RecordingWorld(events), bucket_bytes=1)
    counts = []
    for frozen in (False, True, True, False, False):
        model.first.requires_grad_(not frozen)
        step = record_step(model, buckets, events, ["left"])
        counts.append((len([e for e in step if e[0] == "exchange"]), "comparison" in step))
        assert (model.first.weight.grad is None) == frozen
    assert counts == [(6, True), (4, True), (4, False), (6, True), (6, False)]


def test_a_model_without_gradients_needs_no_exchange() -> None:
    events: list[Any] = []
    frozen = nn.Linear(2, 2).requires_grad_(False)
    buckets = GradientBuckets(frozen.parameters(), RecordingWorld(events))
    for _ in range(2):
        buckets.start()
        buckets.finish()
    assert events == ["comparison"]


def test_a_bucket_is_one_launch_on_a_device() -> None:
    world = MirroredWorld()
    with count_device_work() as counters:
        model = BranchedNet().to(DEVICE)
        buckets = GradientBuckets(model.parameters(), world)
        images = torch.ones(1, 3, 6, 6).to(DEVICE)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            buckets.start()
            with buckets.accumulate():
                model(images, ["left"]).backward()
            counters.launches.clear()
            world.exchanges.clear()
            buckets.finish()
    assert dict(counters.launches) == {"cat": 1}
    assert dict(world.exchanges) == {"all_reduce": 1}


def test_gradients_of_several_types_are_sent_apart() -> None:
    parameters = [nn.Parameter(torch.ones(2, dtype=d)) for d in (torch.float32, torch.float64) * 2]
    events: list[Any] = []
    buckets = GradientBuckets(parameters, RecordingWorld(events))
    for _ in range(2):
        events.clear()
        buckets.start()
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward([parameter.sum() for parameter in parameters])
        buckets.finish()
        assert [e for e in events if e[0] == "exchange"] == [("exchange", 4)] * 2
        assert [p.grad.dtype for p in parameters if p.grad is not None] == [
            p.dtype for p in parameters
        ]


def test_a_model_is_freed_without_the_garbage_collector() -> None:
    model = BranchedNet()
    buckets = GradientBuckets(model.parameters(), RecordingWorld([]))
    record_step(model, buckets, [], ["left"])
    objects: list[Any] = [model, buckets, model.first.weight]
    references = [weakref.ref(item) for item in objects]
    gc.disable()
    try:
        del model, buckets, objects
        assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_several_tensors_are_exchanged_together(count: int) -> None:
    tensors = [torch.full((2, i + 1), 1.0).T for i in range(count)]
    calls = []

    def exchange(values: Tensor) -> None:
        calls.append(values.numel())
        values.mul_(3)

    exchange_together(tensors, exchange)
    assert len(calls) == min(count, 1)
    assert all(torch.equal(tensor, torch.full_like(tensor, 3.0)) for tensor in tensors)
