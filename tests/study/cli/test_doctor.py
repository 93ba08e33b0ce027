"""Tests of `study doctor`: packages, cache and tracking store of this machine."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.cli.doctor import REQUIRED_PACKAGES, _describe_cache
from study.cluster.constants import TRACKING_VARIABLE
from tests.support.command_line import RunCommand
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split


def test_the_cache_is_described_with_its_size(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    assert _describe_cache(directory) == f"0 MiB in 0 entries at {directory} (DML_STUDY_CACHE)"
    load_dataset("glyphs", cache_dir=directory, classes=80, samples=16, size=28)
    assert _describe_cache(directory) == f"1 MiB in 1 entries at {directory} (DML_STUDY_CACHE)"


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions without imports, and no tracking store in the environment."""
    monkeypatch.setattr("study.cli.doctor.version", lambda _: "1.2.3")
    monkeypatch.setattr("study.cli.doctor.importlib", SimpleNamespace(import_module=str))
    monkeypatch.setattr("study.cli.doctor._describe_gpus", lambda: "none")
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)


@pytest.mark.usefixtures("quick_checks")
def test_a_machine_without_problems_is_ready(study: RunCommand) -> None:
    done = study("doctor")
    assert done.code == 0, done.err
    assert done.out.endswith("ready\n")
    assert all(f"{package:<11} 1.2.3" in done.out for package in REQUIRED_PACKAGES)


@pytest.mark.usefixtures("quick_checks")
def test_a_missing_package_is_a_problem_with_the_command_that_installs_it(
    study: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package == "optuna":
            raise PackageNotFoundError(package)
        return "1.2.3"

    monkeypatch.setattr("study.cli.doctor.version", version)
    done = study("doctor")
    assert done.code == 1
    assert done.err.startswith("problem: optuna")
    assert "pip install" in done.err
    assert done.out.endswith("1 problem\n")


@pytest.mark.usefixtures("quick_checks")
def test_a_full_disk_is_a_problem(study: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=2**30)
    monkeypatch.setattr("study.cli.doctor.shutil", SimpleNamespace(disk_usage=lambda _: usage))
    done = study("doctor")
    assert done.code == 1
    assert "2 GiB" in done.err


@pytest.mark.usefixtures("quick_checks")
def test_gpus_are_checked_on_request_only(
    study: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(echo: Callable[[str], None]) -> list[str]:
        echo("training    resnet50")
        return ["cuda:1 cannot train"]

    monkeypatch.setattr("study.runner.device_check.check_gpus", check)
    assert "training" not in study("doctor").out
    done = study("doctor", "--gpu")
    assert done.code == 1
    assert "training    resnet50" in done.out
    assert done.err == "problem: cuda:1 cannot train\n"
