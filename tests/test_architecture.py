"""Tests of layers, names, imports of heavy libraries, and the layout of packages and tests."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.naming import count_names, find_repeated_class_names, list_source_files

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("search_spaces", "trainables", "study")
IMPORT_LOCATIONS = {
    "timm": {"trainables/models/backbone.py"},
    "faiss": {"trainables/retrieval/faiss_search.py"},
    "mlflow": {"study/tracking/"},
    "ray": {
        "trainables/actors/trainable.py",
        "trainables/actors/rank_actor.py",
        "trainables/actors/ranks.py",
        "study/runner/",
        "study/cluster/head.py",
    },
    "boto3": {"trainables/utils/s3.py"},
    "botocore": {"trainables/utils/s3.py"},
    "plotly": {"study/report/"},
    "matplotlib": {
        "study/report/",
        "trainables/data/readers/glyphs.py",
        "trainables/retrieval/gallery.py",
    },
    "pytorch_metric_learning": {"trainables/losses/pml.py"},
}
ALLOWED_PACKAGES = {
    "search_spaces": {"search_spaces"},
    "trainables": {"trainables"},
    "study": {"search_spaces", "trainables", "study"},
}


def list_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


SOURCE_FILES = [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", SOURCE_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_layers_and_heavy_libraries_their_locations(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    package = relative.split("/")[0]
    for module in list_imports(path):
        top = module.split(".")[0]
        if top in PACKAGES:
            assert top in ALLOWED_PACKAGES[package], f"{relative} must not import {module}"
        if top in IMPORT_LOCATIONS:
            allowed = any(relative.startswith(place) for place in IMPORT_LOCATIONS[top])
            assert allowed, f"{relative} imports {module}; only {sorted(IMPORT_LOCATIONS[top])} may"
    if package == "search_spaces":
        heavy = {"torch", "ray", "mlflow", "pandas", "scipy", "sklearn"}
        assert not heavy & {m.split(".")[0] for m in list_imports(path)}


def test_help_imports_no_heavy_library() -> None:
    """The time depends on the machine, so its limit is high and imports are checked."""
    code = (
        "import sys\n"
        "from study.cli.main import main\n"
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
    from study.cli.main import COMMAND_MODULES, COMMAND_SUMMARIES

    files = {p.stem for p in (ROOT / "study" / "cli").glob("*.py")}
    assert {COMMAND_MODULES.get(name, name) for name in COMMAND_SUMMARIES} == files - {
        "__init__",
        "main",
        "options",
        "display",
        "execute",
        "report_text",
    }


def test_names_are_phrases() -> None:
    counts = count_names()
    assert counts.one_word_function_share <= 0.25
    assert counts.one_word_class_share <= 0.12
    assert find_repeated_class_names() == []


@pytest.mark.parametrize(("package", "max_files"), [("study", 6), ("trainables", 4)])
def test_packages_consist_mainly_of_subpackages(package: str, max_files: int) -> None:
    files = [path.name for path in (ROOT / package).iterdir() if path.is_file()]
    assert len(files) <= max_files, files


def test_modules_have_mirrored_tests() -> None:
    large = [
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in list_source_files(package)
        if path.name != "__init__.py" and len(path.read_text("utf-8").splitlines()) > 60
    ]
    untested = [
        str(path)
        for path in large
        if not (ROOT / "tests" / path.with_name(f"test_{path.name}")).exists()
    ]
    assert len(untested) <= 0.2 * len(large), untested


def test_groups_reach_the_scheduler(request: pytest.FixtureRequest) -> None:
    """Without groups, every worker would repeat the expensive set-up of every file."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("a run in one process has no groups")
    assert request.node.nodeid.endswith("@tests/test_architecture.py")
