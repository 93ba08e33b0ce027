"""Processes of ours run our code, wherever we are called from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from study.processes import module, surroundings


@pytest.mark.parametrize("name", ["study.errors", "mlflow.version"])
def test_what_lies_in_the_folder_is_not_imported(name: str, tmp_path: Path) -> None:
    for file in ("study/__init__.py", "mlflow/__init__.py", "random.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit('not ours')")
    subprocess.run(module(name), cwd=tmp_path, env=surroundings(), check=True)
