"""Small picture trees in the official layouts, with real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Paint = Callable[..., Path]


@pytest.fixture
def paint() -> Paint:
    """Writes a small picture whose colour tells its class."""

    def write(path: Path, label: int = 0, size: tuple[int, int] = (40, 32)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(label)
        colour = rng.integers(0, 255, size=3)
        pixels = np.broadcast_to(colour, (size[1], size[0], 3)).astype(np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture
def class_folders(tmp_path: Path, paint: Paint) -> Path:
    """Eight classes of three pictures each."""
    root = tmp_path / "pictures"
    for label in range(8):
        for i in range(3):
            paint(root / f"class{label}" / f"{i}.jpg", label)
    return root
