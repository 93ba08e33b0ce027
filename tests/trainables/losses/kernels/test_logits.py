"""Do exponentials stay in range wherever the largest logit is, and whatever the rows weigh?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainables.losses import LOSSES, build_loss, loss_knobs
from trainables.losses.blocks import Budget

PROXY = [name for name, info in LOSSES.items() if info.family == "proxy"]
CLASSES, DIM = 300, 16
F64 = torch.float64

# Logits of hundreds: differences of them overflow and underflow as exponentials of float32.
SHARP: dict[str, float] = {
    "alpha": 500.0,
    "gamma": 500.0,
    "lambda_": 500.0,
    "scale": 500.0,
    "temperature": 1 / 500,
}

Make = Callable[..., Any]


def sharp(name: str, make_loss: Make, dtype: torch.dtype) -> Any:
    # SoftTriple's gamma is the temperature of its centres.
    known = set(loss_knobs(name)) - ({"gamma"} if name == "soft_triple" else set())
    changed = {k: v for k, v in SHARP.items() if k in known}
    return make_loss(name, n_classes=CLASSES, dim=DIM, dtype=dtype, **changed)


def gradients(loss: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    value = loss(x, y)
    return [value.detach(), *torch.autograd.grad(value, [x, *loss.parameters()])]


def near(loss: Any, classes: list[int]) -> Tensor:
    """Samples on the proxies of these classes."""
    proxies: Tensor = loss.proxies.detach()[classes]
    return (proxies[:, 0] if proxies.dim() == 3 else proxies).clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROXY)
def test_order_of_the_classes_does_not_count(
    name: str, dtype: torch.dtype, make_loss: Make
) -> None:
    """The wrong class that a sample lies on comes last, or first."""
    loss = sharp(name, make_loss, dtype)
    x, y = near(loss, [299, 298, 0, 297]), torch.tensor([3, 4, 5, 297])
    value, of_x, of_proxies = gradients(loss, x, y)
    loss.proxies.data = loss.proxies.data.flip(0)
    other, of_same, of_flipped = gradients(loss, x, CLASSES - 1 - y)
    assert torch.isfinite(value)
    got, want = [other, of_same, of_flipped.flip(0)], [value, of_x, of_proxies]
    rtol, atol = (2e-4, 1e-4) if dtype == torch.float32 else (1e-9, 1e-9)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", PROXY)
def test_samples_without_and_with_a_loss_in_one_batch(name: str, make_loss: Make) -> None:
    """Gradients that are all but zero, exactly zero and large, beside those of float64."""
    loss, wide = (sharp(name, make_loss, dtype) for dtype in (torch.float32, torch.float64))
    wide.proxies.data.copy_(loss.proxies.data)
    own, other = near(loss, [0, 1, 2]), near(loss, [3, 4, 5])
    x = torch.cat([own, other, own + 0.8 * other])
    y = torch.arange(3).repeat(3)
    got, want = gradients(loss, x, y), gradients(wide, x.double(), y)
    largest = max(float(tensor.abs().max()) for tensor in want)
    for narrow, exact in zip(got, want, strict=True):
        torch.testing.assert_close(narrow.double(), exact, rtol=2e-3, atol=1e-4 * largest)


def test_sums_of_many_blocks_stay_in_range(make_loss: Make) -> None:
    """Each block's exponentials still fit above the level of the first classes, all do not."""
    loss, wide = (
        make_loss("softmax", n_classes=1500, dim=2, dtype=t) for t in (torch.float32, F64)
    )
    budget = Budget(block_bytes=600)
    for part in loss.modules():
        if hasattr(part, "budget"):
            setattr(part, "budget", budget)  # noqa: B010 - modules are typed as tensors' owners
    for either in (loss, wide):
        either.proxies.data.zero_()
        either.proxies.data[130:, 0] = 83.0
    x, y = torch.tensor([[1.0, 0.1]] * 3), torch.arange(3)
    got, want = gradients(loss, x, y), gradients(wide, x.double(), y)
    torch.testing.assert_close([t.double() for t in got], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [1 / 60, 1 / 40, 1 / 30, 1 / 20])
def test_opposite_to_all_centres_of_the_own_class(temperature: float, make_loss: Make) -> None:
    """Two exponentials meet in one factor: that of the choice of centres, that of the classes."""
    knobs = {"lambda_": 30.0, "gamma": temperature, "centers": 3}
    loss, wide = (
        make_loss("soft_triple", n_classes=5, dim=4, dtype=t, **knobs) for t in (torch.float32, F64)
    )
    centres = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(2)) * 1e-3
    for number, towards in enumerate([-1.0, 1.0]):
        centres[number, :, 0] += towards
    centres[2:, :, 1] += 1.0
    loss.proxies.data, wide.proxies.data = centres, centres.double()
    x, y = torch.tensor([[1.0, 0.0, 0.0, 0.01]] * 2), torch.zeros(2, dtype=torch.int64)
    got, want = gradients(loss, x, y), gradients(wide, x.double(), y)
    torch.testing.assert_close([t.double() for t in got], want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("m", [1e-3, 1e-12, 1e-39, -1e-39, 1e-310])
def test_circle_with_a_tiny_margin_is_circle_without(m: float, make_loss: Make) -> None:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(12, DIM, generator=generator), torch.arange(12)
    got, want = (
        gradients(make_loss("circle", n_classes=20, dim=DIM, dtype=torch.float32, m=margin), x, y)
        for margin in (m, 0.0)
    )
    rtol, atol = 1e-4 + 200 * abs(m), 1e-5 + 5 * abs(m)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("length", [1e-15, 1e15])
def test_proxies_of_any_length(length: float) -> None:
    """Whatever is folded into one factor stays in the range of float32."""
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(12, DIM, generator=generator), torch.arange(12)
    plain: Any = build_loss("norm_softmax", n_classes=CLASSES, dim=DIM, temperature=1 / 29)
    value, of_x, of_proxies = gradients(plain, x, y)
    plain.proxies.data *= length
    same, of_same, of_long = gradients(plain, x, y)
    torch.testing.assert_close(same, value)
    torch.testing.assert_close(of_same, of_x)
    torch.testing.assert_close(of_long * length, of_proxies)
