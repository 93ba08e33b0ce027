"""A space file, and `study import` in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.cli.main import main
from study.directory import default_tracking_uri
from study.errors import StudyError
from study.tracking.reader import read_table
from study.trials.table import TrialTable
from tests.support.imported_tables import SPACE, ImportTrials


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE, "utf-8")
    return path


@pytest.fixture
def import_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> ImportTrials:
    """Runs `study import` and reads the table back; an error of the command is a StudyError."""

    def run(*arguments: object) -> TrialTable:
        words = ["import", "s", "--root", str(tmp_path / "studies"), *map(str, arguments)]
        with pytest.raises(SystemExit) as done:
            main(words)
        printed = capsys.readouterr()
        if done.value.code:
            assert done.value.code == 2
            assert not printed.out
            assert len(printed.err.splitlines()) == 1
            raise StudyError(printed.err.strip())
        return read_table(default_tracking_uri(tmp_path / "studies" / "s"), "s")

    return run
