"""Tests of `study resume`: unknown, damaged and interrupted studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import RunCommand

pytestmark = pytest.mark.split


def test_an_unknown_study_is_one_line_that_names_the_nearest(
    study: RunCommand, tmp_path: Path
) -> None:
    (tmp_path / "studies" / "mine").mkdir(parents=True)
    (tmp_path / "studies" / "mine" / "plan.json").write_text("{")
    done = study("resume", "mien")
    assert done.code == 2
    assert "did you mean 'mine'?" in done.err
    damaged = study("resume", "mine")
    assert damaged.code == 2
    assert "damaged" in damaged.err
    assert (tmp_path / "studies" / "mine" / "plan.json").read_text() == "{"


@pytest.mark.parametrize("content", [b"this is not a database" * 99, b""])
@pytest.mark.parametrize("command", ["resume", "report", "ui"])
def test_a_damaged_store_is_one_line(
    command: str, content: bytes, study: RunCommand, unfinished_study: Path
) -> None:
    (unfinished_study / "mlflow.db").write_bytes(content)
    done = study(command, "s")
    assert done.code == 2
    assert "mlflow.db" in done.err
    assert done.err.count("\n") == 1
