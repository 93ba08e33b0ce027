"""The pretend device counts launches, waits and uploads, and raises on mixed devices."""

from __future__ import annotations

import pytest
import torch

from tests.support.pretend_device import (
    PretendTensor,
    count_device_work,
    pin,
    register_pretend_device,
)

DEVICE = register_pretend_device()


def test_values_and_gradients_are_those_of_the_cpu() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    weight = torch.randn(4, 3, dtype=torch.float64)
    results = []
    for device in (torch.device("cpu"), DEVICE):
        with count_device_work():
            w = weight.to(device, copy=True).requires_grad_()
            value = torch.nn.functional.linear(x.to(device), w).square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            assert w.grad is not None
            results.append((float(value.detach()), w.grad.cpu()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_kernels_are_counted_and_views_are_not() -> None:
    with count_device_work() as counters:
        x = torch.ones(4, 4).to(DEVICE)
        y = (x.t() @ x).view(16)[:8] + 1.0
    assert isinstance(y, PretendTensor)
    assert dict(counters.launches) == {"mm": 1, "add": 1}


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: bool((x > 0).all()),
        lambda x: torch.empty(3).copy_(x),
        lambda x: torch.equal(x, x),
    ],
)
def test_the_host_waits_for_values(read: object) -> None:
    with count_device_work() as counters:
        x = torch.ones(3).to(DEVICE)
        before = sum(counters.waits.values())
        read(x)  # type: ignore[operator]
    assert sum(counters.waits.values()) == before + 1
    assert all(place.startswith("tests/test_pretend_device.py:") for place in counters.waits)


def test_uploads_are_counted_and_only_pinned_ones_do_not_wait() -> None:
    with count_device_work() as counters:
        torch.ones(3).to(DEVICE)
        torch.tensor([1.0, 2.0], device=DEVICE)
        assert sum(counters.waits.values()) == 2
        pin(torch.ones(8)).to(DEVICE, non_blocking=True)
    assert sum(counters.waits.values()) == 2
    assert sum(counters.uploads.values()) == 3
    assert counters.uploaded_bytes == 4 * (3 + 2 + 8)


def test_operands_on_two_devices_raise() -> None:
    with count_device_work():
        x = torch.ones(3).to(DEVICE)
        with pytest.raises(RuntimeError, match="one device"):
            x + torch.ones(3)
        assert (x + torch.tensor(1.0)).sum().item() == 6
