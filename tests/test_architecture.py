"""Imports point one way, each heavy neighbour has one door, and nothing works at import."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("search_spaces", "trainables", "study")
DOORS = {
    "timm": {"trainables/backbone.py"},
    "faiss": {"trainables/retrieval.py"},
    "mlflow": {"study/tracking/"},
    "ray": {"trainables/trial.py", "trainables/ranks.py", "study/tuning/", "study/cluster/head.py"},
    "boto3": {"trainables/objects.py"},
    "botocore": {"trainables/objects.py"},
    "plotly": {"study/report/"},
    "matplotlib": {"study/report/", "trainables/data/glyphs.py", "trainables/gallery.py"},
    "pytorch_metric_learning": {"trainables/losses/pml.py"},
}
MAY_IMPORT = {
    "search_spaces": {"search_spaces"},
    "trainables": {"trainables"},
    "study": {"search_spaces", "trainables", "study"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


FILES = [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way_and_through_one_door(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    package = relative.split("/")[0]
    for module in imports(path):
        top = module.split(".")[0]
        if top in PACKAGES:
            assert top in MAY_IMPORT[package], f"{relative} must not import {module}"
        if top in DOORS:
            allowed = any(relative.startswith(door) for door in DOORS[top])
            assert allowed, f"{relative} imports {module}; its door is {sorted(DOORS[top])}"
    if package == "search_spaces":
        heavy = {"torch", "ray", "mlflow", "pandas", "scipy", "sklearn"}
        assert not heavy & {m.split(".")[0] for m in imports(path)}


def test_help_is_immediate() -> None:
    """Import cost, not machine speed: none of the heavy packages is touched by --help."""
    code = (
        "import sys\n"
        "from study.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'ray', 'mlflow', 'optuna', 'pandas', 'numpy', 'pydantic', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert time.perf_counter() - started < 10
    assert done.stderr.strip() == "[]"
    for name in ("new", "run", "resume", "report", "ui"):
        assert name in done.stdout


def test_every_listed_command_exists() -> None:
    from study.main import COMMANDS, FILES

    files = {p.stem for p in (ROOT / "study" / "commands").glob("*.py")}
    assert {FILES.get(name, name) for name in COMMANDS} == files - {"__init__", "options"}
