"""Do exponentials stay in range wherever the largest logit is, and whatever the rows weigh?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainables.losses import LOSSES, build_loss, loss_knobs

PROXY = [name for name, info in LOSSES.items() if info.family == "proxy"]
CLASSES, DIM = 300, 16

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
