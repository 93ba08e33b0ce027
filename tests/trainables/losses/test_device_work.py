"""Work of the losses on a device other than the CPU: no waits, no uploads, few launches.

The device is the one of `tests.support.pretend_device`. The forms of the losses for devices are
also run on the CPU in float64, where they must agree with the forms for the CPU to rounding.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from search_spaces import get_space
from tests.support.loss_gradients import compute_loss_and_gradients, set_memory_budget
from tests.support.pretend_device import (
    DeviceCounters,
    count_device_work,
    register_pretend_device,
)
from tests.support.thread_shards import ThreadReducer
from trainables.losses import LOSSES, build_loss, loss_params, reseed_loss
from trainables.losses.base import device_draws
from trainables.losses.base.proxy_loss import check_batch
from trainables.losses.kernels import own_entries
from trainables.losses.kernels.blocks import MemoryBudget

pytestmark = pytest.mark.split

DEVICE, CPU = register_pretend_device(), torch.device("cpu")
N_CLASSES, DIM, BATCH, SAMPLES_PER_CLASS = 100, 128, 120, 4

Batch = tuple[Tensor, Tensor]


class Case(NamedTuple):
    """A loss with options other than its published ones, and the launches it may take."""

    name: str
    max_launches: int
    options: dict[str, Any]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


LAUNCHES: dict[str, int] = {
    "softmax": 58,
    "norm_softmax": 64,
    "am_softmax": 65,
    "arcface": 108,
    "proxy_nca": 60,
    "proxy_nca_pp": 64,
    "soft_triple": 108,
    "proxy_anchor": 82,
    "circle": 91,
    "circle_pair": 67,
    "unified": 65,
    "unified_pair": 60,
    "triplet": 57,
    "contrastive": 52,
    "multi_similarity": 64,
    "margin": 58,
    "softmax+synthesis": 86,
    "norm_softmax+synthesis": 102,
    "am_softmax+synthesis": 103,
    "arcface+synthesis": 145,
    "proxy_nca+synthesis": 98,
    "proxy_nca_pp+synthesis": 102,
    "soft_triple+synthesis": 203,
    "proxy_anchor+synthesis": 120,
    "circle+synthesis": 128,
    "unified+synthesis": 103,
}
ALL = [
    *LOSSES,
    *(f"{name}+synthesis" for name, info in LOSSES.items() if info.family == "proxy"),
]

LEARNED, SMOOTHED = {"temperature_mode": "learned"}, {"label_smoothing": 0.1}
FEW = {"negative_share": 0.5}
OTHER_OPTIONS = [
    Case("triplet", 53, {"mining": "semihard"}),
    Case("circle_pair", 69, {"reduction": "batch"}),
    Case("unified_pair", 60, {"reduction": "all"}),
    Case("multi_similarity", 52, {"mining": "none"}),
    Case("margin", 67, {"learn_beta": True}),
    Case("norm_softmax", 99, LEARNED),
    Case("circle", 117, LEARNED),
    Case("soft_triple", 167, LEARNED | SMOOTHED),
    Case("norm_softmax", 84, SMOOTHED),
    Case("norm_softmax", 85, {"proxies_per_class": 3}),
    Case("norm_softmax+synthesis", 204, {"synthesis_path": "spherical"}),
    Case("softmax+synthesis", 220, {"synthesis_path": "spherical"}),
    Case("norm_softmax+synthesis", 102, {"synthesis_draw": "sample", "synthesis_mu": 1.5}),
    Case("norm_softmax+synthesis", 64, {"synthesis_mu": 0.0}),
    Case("norm_softmax", 103, FEW),
    Case("proxy_anchor", 121, FEW),
    Case("circle", 185, FEW | SMOOTHED | LEARNED),
    Case("soft_triple", 178, FEW | SMOOTHED),
    Case("proxy_anchor+synthesis", 217, FEW),
]
SHARDED = [
    Case("norm_softmax", 78, {}),
    Case("proxy_anchor", 96, {}),
    Case("soft_triple", 127, {}),
    Case("norm_softmax", 115, FEW),
    Case("proxy_anchor+synthesis", 186, {}),
    Case("norm_softmax+synthesis", 199, FEW),
]


class StubWorld:
    """World of two ranks of which the other contributes nothing; counts the exchanges."""

    size = 2

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.n_exchanges = rank, 0

    def all_reduce_max_(self, partial: Tensor) -> None:
        self.n_exchanges += 1

    def all_reduce_sum_(self, partial: Tensor) -> None:
        self.n_exchanges += 1


class ThreadWorld(ThreadReducer):
    """World of one thread of several."""

    def __init__(self, rank: int, parts: list[Tensor], barrier: threading.Barrier) -> None:
        super().__init__(rank, parts, barrier)
        self.rank, self.size = rank, len(parts)


def make_loss(
    name: str, *, n_classes: int = N_CLASSES, dim: int = DIM, **options: Any
) -> nn.Module:
    """Return a loss at its first published point, with some options changed."""
    known = loss_params(name)
    published = get_space(name).published[0].values
    params = {key: value for key, value in published.items() if key in known}
    return build_loss(name, n_classes=n_classes, dim=dim, **(params | options))


def draw_batch() -> Batch:
    """Return embeddings around one direction per class, so that mining finds every kind."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.arange(BATCH) // SAMPLES_PER_CLASS
    centres = torch.randn(N_CLASSES, DIM, generator=generator)[labels]
    order = torch.randperm(BATCH, generator=generator)
    x = centres + 2.0 * torch.randn(BATCH, DIM, generator=generator)
    return x[order], labels[order]


def run_two_steps(loss: nn.Module, device: torch.device) -> tuple[list[Tensor], DeviceCounters]:
    """Return value and gradients of the second step, and the work of that step."""
    x, y = draw_batch()
    with count_device_work() as counters:
        loss.to(device)
        reseed_loss(loss, 3)
        inputs = [x.to(device, copy=True).requires_grad_() for _ in range(2)]
        y = y.to(device)
        loss(inputs[0], y).backward()
        loss.zero_grad(set_to_none=True)
        for counter in (counters.launches, counters.waits, counters.uploads):
            counter.clear()
        value = loss(inputs[1], y)
        value.backward()
        work = DeviceCounters()
        work.launches, work.waits = counters.launches.copy(), counters.waits.copy()
        work.uploads = counters.uploads.copy()
        gradients = [inputs[1].grad, *(p.grad for p in loss.parameters())]
        assert all(gradient is not None for gradient in gradients)
        return [value.detach().cpu(), *(g.cpu() for g in gradients if g is not None)], work


def assert_nearly_equal(
    computed: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-5
) -> None:
    """Assert equality up to a tolerance that is relative to the largest element of a tensor."""
    for one, other in zip(computed, expected, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


def check_device_work(case: Case, work: DeviceCounters) -> None:
    assert dict(work.waits) == {}
    assert dict(work.uploads) == {}
    launches = sum(work.launches.values())
    assert 20 < launches <= case.max_launches, dict(work.launches)


@pytest.mark.parametrize(
    "case", [*(Case(name, LAUNCHES[name], {}) for name in ALL), *OTHER_OPTIONS], ids=str
)
def test_a_step_on_a_device_neither_waits_nor_uploads(case: Case) -> None:
    expected, on_host = run_two_steps(make_loss(case.name, **case.options), CPU)
    computed, work = run_two_steps(make_loss(case.name, **case.options), DEVICE)
    assert not on_host.launches
    assert float(expected[0].abs()) > 0
    assert_nearly_equal(computed, expected)
    check_device_work(case, work)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", SHARDED, ids=str)
def test_a_step_with_shards_neither_waits_nor_uploads(case: Case, rank: int) -> None:
    worlds = [StubWorld(rank), StubWorld(rank)]
    expected, _ = run_two_steps(make_loss(case.name, shards=worlds[0], **case.options), CPU)
    computed, work = run_two_steps(make_loss(case.name, shards=worlds[1], **case.options), DEVICE)
    assert_nearly_equal(computed, expected)
    check_device_work(case, work)
    on_host, on_device = (world.n_exchanges for world in worlds)
    # Without interpolated samples there is no gradient of their factors to exchange.
    fewer = 2 if "synthesis" in case.name else 0
    assert on_device == on_host - fewer > 0


@pytest.fixture
def use_device_forms(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """`use_device_forms(True)` computes on the CPU as on other devices."""

    def use(forms: bool) -> None:
        types = frozenset[str]() if forms else frozenset({"cpu"})
        monkeypatch.setattr(own_entries, "HOST_DEVICE_TYPES", types)

    return use


def compare_forms(
    loss: nn.Module, batch: Batch, use_device_forms: Callable[[bool], None], tolerance: float
) -> None:
    """Check that both forms give the same value and gradients."""
    results = []
    for forms in (False, True):
        use_device_forms(forms)
        value, gradient, *others = compute_loss_and_gradients(loss, *batch)
        if getattr(loss, "mining", "") == "hard":
            # Which of several equal vectors is the farthest or nearest depends on rounding. The
            # gradient is unique only as a sum over them.
            equal = (batch[0][:, None] == batch[0][None]).all(dim=-1)
            gradient = equal.to(gradient.dtype) @ gradient
        results.append([value, gradient, *others])
    assert_nearly_equal(results[1], results[0], tolerance)


@pytest.mark.parametrize("case", [*(Case(name, 0, {}) for name in ALL), *OTHER_OPTIONS], ids=str)
def test_both_forms_agree_on_difficult_batches(
    case: Case, batch: Batch, use_device_forms: Callable[[bool], None]
) -> None:
    loss = make_loss(case.name, n_classes=7, dim=5, **case.options).double()
    if "synthesis" in case.name and len(set(batch[1].tolist())) == 1:
        # On a device it is not known that there are no pairs of different classes.
        use_device_forms(True)
        assert all(bool(t.isfinite().all()) for t in compute_loss_and_gradients(loss, *batch))
    else:
        compare_forms(loss, batch, use_device_forms, 1e-9)


@pytest.mark.parametrize("name", ["norm_softmax", "circle", "proxy_anchor", "soft_triple"])
@pytest.mark.parametrize("options", [{}, FEW, {"synthesis_mu": 1.0}], ids=str)
def test_both_forms_agree_for_many_blocks(
    name: str,
    options: dict[str, Any],
    random_batch: Batch,
    use_device_forms: Callable[[bool], None],
) -> None:
    name += "+synthesis" if "synthesis_mu" in options else ""
    loss = make_loss(name, n_classes=7, dim=5, **options).double()
    set_memory_budget(loss, MemoryBudget(keep_bytes=0, block_bytes=11 * 8 * 2))
    compare_forms(loss, random_batch, use_device_forms, 1e-9)


@pytest.mark.parametrize("name", [name for name in ALL if "synthesis" in name])
def test_both_forms_agree_for_proxies_in_half_precision(
    name: str, random_batch: Batch, use_device_forms: Callable[[bool], None]
) -> None:
    loss = make_loss(name, n_classes=7, dim=5).bfloat16()
    compare_forms(loss, (random_batch[0].float(), random_batch[1]), use_device_forms, 2**-7)


@pytest.mark.parametrize("case", SHARDED, ids=str)
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_shards_on_a_device_are_the_loss_of_one_process(
    case: Case, n_ranks: int, random_batch: Batch, use_device_forms: Callable[[bool], None]
) -> None:
    sizes = {"n_classes": 7, "dim": 5}
    complete = make_loss(case.name, **sizes, **case.options).double()
    expected = compute_loss_and_gradients(complete, *random_batch)
    use_device_forms(True)
    parts, barrier = [torch.empty(0)] * n_ranks, threading.Barrier(n_ranks, timeout=20)

    def run(rank: int) -> list[Tensor]:
        world = ThreadWorld(rank, parts, barrier)
        loss = make_loss(case.name, shards=world, **sizes, **case.options).double()
        return compute_loss_and_gradients(loss, *random_batch)

    with ThreadPoolExecutor(n_ranks) as pool:
        results = list(pool.map(run, range(n_ranks)))
    for value, of_x, *_ in results:
        assert_nearly_equal([value, of_x], expected[:2], 1e-9)
    assert_nearly_equal([torch.cat([result[2] for result in results])], expected[2:], 1e-9)


def test_draws_on_a_device_are_those_of_the_cpu(
    use_device_forms: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch sizes change, the numbers of an upload run out, and the CPU takes over again."""
    monkeypatch.setattr(device_draws, "_STEPS_PER_UPLOAD", 3)
    x, y = (part[:24] for part in draw_batch())
    x = x.double()
    sizes = [24, 24, 16, 16, 16, 16, 24, 24, 16, 16]
    values: list[list[float]] = []
    for forms in (lambda step: False, lambda step: True, lambda step: step < 7):
        loss = make_loss("norm_softmax+synthesis", negative_share=0.3).double()
        reseed_loss(loss, 5)
        values.append([])
        for step, size in enumerate(sizes):
            use_device_forms(forms(step))
            values[-1].append(float(loss(x[:size], y[:size]).detach()))
    assert len(set(values[0])) == len(sizes)
    np.testing.assert_allclose(values[1], values[0], rtol=1e-12)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "options"), [("norm_softmax", FEW), ("norm_softmax+synthesis", {})]
)
def test_reseeding_repeats_the_draws_on_a_device(
    name: str, options: dict[str, Any], use_device_forms: Callable[[bool], None]
) -> None:
    use_device_forms(True)
    loss = make_loss(name, **options)

    def run_epoch(seed: int) -> list[float]:
        reseed_loss(loss, seed)
        return [float(loss(*draw_batch()).detach()) for _ in range(3)]

    first = run_epoch(1)
    assert run_epoch(2) != first
    assert run_epoch(1) == first


def test_draws_are_uploaded_once_for_many_steps() -> None:
    loss = make_loss("norm_softmax+synthesis", negative_share=0.3)
    x, y = draw_batch()
    uploads = []
    with count_device_work() as counters:
        loss.to(DEVICE)
        x, y = x.to(DEVICE), y.to(DEVICE)
        for _ in range(65):
            before = sum(counters.uploads.values())
            loss(x, y)
            uploads.append(sum(counters.uploads.values()) - before)
    assert uploads == [2, *[0] * 63, 2]


def test_labels_are_checked_on_the_cpu_only() -> None:
    x, y = torch.zeros(2, 4), torch.tensor([0, 3])
    with pytest.raises(ValueError, match=r"\[0, 3\).*0 to 3"):
        check_batch(x, y, n_classes=3, dim=4)
    with count_device_work() as counters:
        on_device = x.to(DEVICE), y.to(DEVICE)
        counters.waits.clear()
        check_batch(*on_device, n_classes=3, dim=4)
        with pytest.raises(ValueError, match="int64"):
            check_batch(on_device[0], on_device[0][:, 0], n_classes=3, dim=4)
    assert not counters.waits


def test_a_loss_is_freed_without_the_garbage_collector() -> None:
    loss = make_loss("norm_softmax+synthesis", negative_share=0.3)
    reference = weakref.ref(loss)
    gc.disable()
    try:
        del loss
        assert reference() is None
    finally:
        gc.enable()
