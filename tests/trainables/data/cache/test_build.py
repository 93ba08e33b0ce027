"""What a disk does to a cache is said with the place where it happened."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainables.data import load_dataset
from trainables.data.cache import Rows, RowSpec, cached_rows

LIMITED = """
import resource, signal, sys
from pathlib import Path
from trainables.data import load_dataset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    load_dataset("folder", cache_dir=Path(sys.argv[2]), path=sys.argv[1], size=64)
except OSError as error:
    print(error)
"""


def test_a_picture_that_the_disk_cannot_give_is_named_and_not_condemned(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    sick = class_folders / "class2" / "1.jpg"
    opened = Image.open

    def broken(source: Any, **more: Any) -> Any:
        if source == sick:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(source, **more)

    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16}
    monkeypatch.setattr(Image, "open", broken)
    with pytest.raises(OSError, match=f"Input/output error: '{sick}'") as caught:
        load_dataset("folder", **options, on_bad_image="skip")
    assert caught.value.errno == errno.EIO
    monkeypatch.undo()
    dataset = load_dataset("folder", **options, on_bad_image="skip")
    assert len(dataset.train) + len(dataset.test) == 24


def test_a_cache_that_cannot_grow_is_named(class_folders: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same call fails."""
    place = tmp_path / "cache"
    command = [sys.executable, "-c", LIMITED, str(class_folders), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.stdout.strip().endswith(f": '{place}'"), done.stderr


def test_leaving_rows_out_needs_space_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for before anything is copied; what was computed is there when there is space."""
    calls: list[int] = []

    def fill(start: int, stop: int) -> Rows:
        calls.append(start)
        return Rows({"x": np.full((stop - start, 64), start)}, {3: "odd"} if start == 0 else {})

    def build() -> Any:
        specs = {"x": RowSpec((64,), "int64")}
        arguments: dict[str, Any] = {"name": "e", "settings": {}, "specs": specs, "n_rows": 100}
        return cached_rows(tmp_path, **arguments, fill=fill, chunk_rows=10, workers=1)

    free = iter([60_000, 100])  # enough for 100 rows of 512 bytes, then little
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
        with pytest.raises(ValueError, match=r"the cache needs .* in .*name another"):
            build()
    assert len(build().arrays["x"]) == 99
    assert len(calls) == 10, "nothing was computed twice"
