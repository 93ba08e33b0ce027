"""Tests of `study import`: a study made from a CSV file, and wrong options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import ImportedStudy, RunCommand

pytestmark = pytest.mark.xdist_group("imported")


def test_trials_of_a_csv_file_become_a_study(study: RunCommand, imported: ImportedStudy) -> None:
    assert "24 trials of mine" in imported.output
    assert "study report theirs" in imported.output
    status = study("status", "theirs", "--root", str(imported.root))
    assert status.code == 2
    assert "theirs was imported" in status.err
    assert "study report" in status.err


def test_a_study_is_not_imported_twice(
    study: RunCommand, imported: ImportedStudy, trial_files: tuple[Path, Path]
) -> None:
    csv, space = map(str, trial_files)
    root = str(imported.root)
    done = study("import", "theirs", "--csv", csv, "--space", space, "--root", root)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "theirs" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--csv, --optuna and --tune"),
        (("--csv", "a.csv", "--tune", "folder"), "--csv, --optuna and --tune"),
        (("--csv", "a.csv"), "--space"),
        (("--csv", "a.csv", "--space", "a.yaml", "--loss", "mine"), "--loss"),
        (("--tune", "folder", "--space", "a.yaml"), "--metric"),
    ],
    ids=["no source", "two sources", "CSV without space", "CSV with loss", "Tune without metric"],
)
def test_wrong_options_are_one_line_and_nothing_is_written(
    study: RunCommand, options: tuple[str, ...], message: str
) -> None:
    done = study("import", "other", *options)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert not list(Path.cwd().iterdir())


def test_the_columns_are_printed_with_an_example_of_a_space_file(study: RunCommand) -> None:
    done = study("import", "--columns")
    assert done.code == 0
    for word in ("trial", "loss", "score", "losses:", "knobs:"):
        assert word in done.out
