"""Images whose colours encode the position of each pixel."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainables.data.augment import ImageTransform
from trainables.data.decode import FitMode, decode_image


def make_gradient(width: int, height: int) -> Image.Image:
    """Return an image whose red rises to the right and whose green rises downwards."""
    right, down = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    return Image.fromarray((255 * np.stack([right, down, 0 * down], axis=-1)).astype(np.uint8))


def store_image(image: Image.Image, size: int, fit: FitMode) -> tuple[NDArray[np.uint8], float]:
    """Return the pixels and the aspect ratio of an image as a data set stores them."""
    handle = io.BytesIO()
    image.save(handle, "PNG")
    pixels, _, aspect = decode_image(handle, size=size, fit=fit)
    return pixels, aspect


def make_level_transform(preset: str, size: int) -> ImageTransform:
    """Return a transform whose outputs are levels of 0..255."""
    return ImageTransform(preset, size=size, mean=(0.0,) * 3, std=(1 / 255,) * 3)


def write_gradient_folders(root: Path, width: int = 128, height: int = 96) -> Path:
    """Write sixteen classes of three gradients, each with its own blue and its own width."""
    for label in range(16):
        for i in range(3):
            pixels = np.array(make_gradient(width + 3 * label + i, height))
            pixels[..., 2] = 5 * (3 * label + i)
            path = root / f"class{label:02d}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return root
