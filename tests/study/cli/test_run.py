"""Tests of `study run`: wrong files and names are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import STUDY, RunCommand, write_study_file

pytestmark = pytest.mark.split


def test_a_missing_file_is_one_line(study: RunCommand) -> None:
    done = study("run", "nowhere.yaml")
    assert done.code == 2
    assert "nowhere.yaml" in done.err
    assert done.err.count("\n") == 1


def test_an_existing_name_is_refused_and_its_directory_unchanged(
    study: RunCommand, tmp_path: Path
) -> None:
    (tmp_path / "studies" / "s").mkdir(parents=True)
    (tmp_path / "studies" / "s" / "precious").write_text("x")
    done = study("run", write_study_file(STUDY))
    assert done.code == 2
    assert "study resume s" in done.err
    assert (tmp_path / "studies" / "s" / "precious").read_text() == "x"


def test_a_cluster_run_refuses_options_of_this_machine(study: RunCommand, tmp_path: Path) -> None:
    file = write_study_file(STUDY)
    done = study("run", file, "--cluster", "cluster.yaml", "--root", str(tmp_path))
    assert done.code == 2
    assert "--root" in done.err
