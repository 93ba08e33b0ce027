"""Child processes run our code, whatever the current directory contains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from study.utils.subprocesses import child_environment, python_command


@pytest.mark.parametrize("name", ["study.errors", "mlflow.version"])
def test_modules_of_the_current_directory_are_not_imported(name: str, tmp_path: Path) -> None:
    for file in ("study/__init__.py", "mlflow/__init__.py", "random.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit('not ours')")
    subprocess.run(python_command(name), cwd=tmp_path, env=child_environment(), check=True)
