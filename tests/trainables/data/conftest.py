"""Fixtures of the data tests: trees of small image files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.painted_images import paint_image


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Folder of eight classes with three images each."""
    root = tmp_path / "images"
    for label in range(8):
        for i in range(3):
            paint_image(root / f"class{label}" / f"{i}.jpg", label)
    return root
