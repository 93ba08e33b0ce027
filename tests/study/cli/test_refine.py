"""Tests of `study refine`: suggested trials of an imported study."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import ImportedStudy, RunCommand

pytestmark = pytest.mark.xdist_group("imported")


@pytest.mark.slow
def test_suggested_trials_are_printed(study: RunCommand, imported: ImportedStudy) -> None:
    root = str(imported.root)
    done = study("refine", "theirs", "--trials", "3", "--root", root)
    assert done.code == 0, done.err
    assert done.out.count("lr=") == 3
    assert "study refine theirs --trials 3 --run" in done.out
    points = json.loads(study("refine", "theirs", "--trials", "3", "--json", "--root", root).out)
    assert [p["loss"] for p in points] == ["mine"] * 3
    assert all(1e-5 <= p["knob.lr"] <= 1e-1 for p in points)


def test_trials_of_an_imported_study_are_not_run(
    study: RunCommand, imported: ImportedStudy
) -> None:
    done = study("refine", "theirs", "--trials", "3", "--run", "--root", str(imported.root))
    assert done.code == 2
    assert "was imported" in done.err
