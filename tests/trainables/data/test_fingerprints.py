"""A fingerprint tells whether two readings can be compared: contents, classes, halves, roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainables.data import Dataset, load_dataset


def read(tmp_path: Path, n_train: int, query: str = "", **more: Any) -> Dataset:
    """Twelve classes of four items, the first `n_train` of them for training."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "a.npz",
        labels=np.repeat(np.arange(12), 4),
        class_split=np.arange(12) >= n_train,
        side=np.tile([0, 1, 0, 1], 12),
        top=np.tile([0, 0, 0, 1], 12),
        **(more or {"features": rng.normal(size=(48, 8))}),
    )
    path = str(tmp_path / "a.npz")
    return load_dataset("arrays", cache_dir=tmp_path / "c", path=path, query=query)


@pytest.mark.parametrize("kind", ["features", "images"])
def test_a_class_that_changes_sides_is_seen(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    shape = (48, 8) if kind == "features" else (48, 6, 6, 3)
    items: dict[str, Any] = {kind: rng.integers(0, 255, shape, dtype=np.uint8)}
    six, again, eight = (read(tmp_path, n, **items) for n in (6, 6, 8))
    assert six.fingerprint == again.fingerprint
    assert six.fingerprint != eight.fingerprint


def test_which_items_ask_is_seen(tmp_path: Path) -> None:
    asked = [read(tmp_path, 6, query).fingerprint for query in ("", "side=1", "top=1")]
    assert len(set(asked)) == 3


def test_a_folder_that_changes_sides_is_seen(class_folders: Path, tmp_path: Path) -> None:
    root = tmp_path / "halves"
    for label in range(8):
        side = root / ("train" if label < 4 else "test")
        side.mkdir(parents=True, exist_ok=True)
        (class_folders / f"class{label}").rename(side / f"class{label}")
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(root), "size": 16}
    before = load_dataset("folder", **options)
    # The last training class becomes the first test class: pictures and numbers stay in order.
    (root / "train" / "class3").rename(root / "test" / "class3")
    after = load_dataset("folder", **options)
    assert (len(before.train), len(after.train)) == (12, 9)
    assert before.fingerprint != after.fingerprint
