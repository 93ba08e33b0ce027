"""Differences between a device and the CPU: losses, image transform and retrieval scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainables.data.augment import ImageTransform
from trainables.data.device_transform import DeviceImageTransform
from trainables.losses import build_loss, reseed_loss
from trainables.retrieval.metrics import evaluate

FLOAT64_TOLERANCE = 1e-9
FLOAT32_TOLERANCE = 1e-5
FLOAT32_TOLERANCE_FACTOR = 8.0
"""A device's float32 may differ from float64 by this multiple of what the CPU's float32 does."""
MAX_GREY_LEVELS = 1.01
"""The CPU's transform rounds rows and columns to whole grey levels."""

BATCH_SIZE, N_CLASSES, DIM, IMAGES_PER_CLASS = 120, 100, 128, 4
_CPU = torch.device("cpu")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class LossDifference:
    """How much the value and the gradients of a loss on a device differ from the CPU's float64.

    Every number is the largest difference relative to the largest element of its tensor.

    Args:
        loss: Name of the loss.
        float64: Difference of the device's float64.
        float32: Difference of the device's float32.
        host_float32: Difference of the CPU's float32.
    """

    loss: str
    float64: float
    float32: float
    host_float32: float

    @property
    def is_exact(self) -> bool:
        """Whether all differences are rounding; NaN is never exact."""
        limit = FLOAT32_TOLERANCE + FLOAT32_TOLERANCE_FACTOR * self.host_float32
        return self.float64 <= FLOAT64_TOLERANCE and self.float32 <= limit


def compare_losses(
    device: torch.device, losses: Mapping[str, Mapping[str, Any]]
) -> list[LossDifference]:
    """Return the differences of losses on a device.

    Args:
        device: The device.
        losses: Hyperparameters by name of the loss.
    """
    return [compare_loss(device, name, params) for name, params in losses.items()]


def compare_loss(device: torch.device, name: str, params: Mapping[str, Any]) -> LossDifference:
    """Return the differences of one loss on a device."""
    reference = _compute_loss(name, params, _CPU, torch.float64)

    def compare(where: torch.device, dtype: torch.dtype) -> float:
        return find_largest_difference(_compute_loss(name, params, where, dtype), reference)

    return LossDifference(
        name,
        float64=compare(device, torch.float64),
        float32=compare(device, torch.float32),
        host_float32=compare(_CPU, torch.float32),
    )


def find_largest_difference(computed: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, relative to the largest element of each tensor; may be NaN."""
    differences = []
    for one, other in zip(computed, expected, strict=True):
        if one.shape != other.shape:
            raise ValueError(f"shapes must be equal, but got {one.shape} and {other.shape}")
        if other.numel():
            scale = other.double().abs().max().clamp(min=torch.finfo(torch.float64).tiny)
            differences.append((one.double() - other.double()).abs().max() / scale)
    return float(torch.stack(differences).max()) if differences else 0.0


def compare_image_transforms(device: torch.device, n: int = 64) -> float:
    """Return the largest difference of crops on a device to the CPU's, in grey levels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 96, 80, 3), dtype=torch.uint8, generator=generator)
    transform = ImageTransform("papers", size=64, mean=_MEAN, std=_STD)
    draws = transform.draw_augmentation(n, 96, 80, generator)
    assert draws.boxes is not None
    assert draws.flips is not None
    expected = transform.apply_augmentation(images.numpy(), draws)
    on_device = DeviceImageTransform(size=64, mean=_MEAN, std=_STD, device=device)
    computed = on_device.crop_and_normalise(
        images.to(device), draws.boxes.to(device), draws.flips.to(device)
    ).cpu()
    levels = (computed - expected) * 255 * torch.tensor(_STD).view(1, -1, 1, 1)
    return float(levels.abs().max())


def compare_scores(device: torch.device, n: int = 2000) -> float:
    """Return the largest difference of retrieval scores on a device to the CPU's."""
    x, labels = _draw_batch(n, n // IMAGES_PER_CLASS)
    expected = evaluate(x, labels)
    computed = evaluate(x.to(device), labels.to(device))
    return max(abs(computed[name] - value) for name, value in expected.items())


def _compute_loss(
    name: str, params: Mapping[str, Any], device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    """Return value and gradients on the CPU, computed on a device."""
    loss = build_loss(name, n_classes=N_CLASSES, dim=DIM, **params).to(device, dtype)
    reseed_loss(loss, 3)
    x, labels = _draw_batch(BATCH_SIZE, N_CLASSES)
    embeddings = x.to(device, dtype, copy=True).requires_grad_()
    value = loss(embeddings, labels.to(device))
    value.backward()
    return [value.detach().cpu(), *_collect_gradients(embeddings, loss)]


def _collect_gradients(embeddings: Tensor, loss: nn.Module) -> list[Tensor]:
    gradients = []
    for tensor in (embeddings, *loss.parameters()):
        if tensor.grad is None:
            raise RuntimeError(f"a gradient of shape {tuple(tensor.shape)} is missing")
        gradients.append(tensor.grad.cpu())
    return gradients


def _draw_batch(n: int, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return embeddings around one direction per class, so that mining finds every kind."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.arange(n) // IMAGES_PER_CLASS % n_classes
    centres = torch.randn(n_classes, DIM, generator=generator)
    order = torch.randperm(n, generator=generator)
    x = centres[labels] + 2.0 * torch.randn(n, DIM, generator=generator)
    return x[order], labels[order]
