"""Tests of `study report`: reports and comparisons from a store, and wrong stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from study.report.writer import ReportPaths
from study.trials.table import TrialTable
from tests.support.command_line import ImportedStudy, RunCommand

pytestmark = pytest.mark.xdist_group("imported")


@pytest.mark.slow
def test_the_report_of_an_imported_study(
    study: RunCommand, imported: ImportedStudy, tmp_path: Path
) -> None:
    done = study("report", "theirs", "--out", "out", "--root", str(imported.root))
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "index.html").stat().st_size > 10_000
    assert "mine" in done.out
    wrong = study("report", "their", "--root", str(imported.root))
    assert wrong.code == 2
    assert "did you mean 'theirs'?" in wrong.err


def test_several_names_give_a_comparison(
    study: RunCommand, imported: ImportedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(tables: Sequence[TrialTable], out: Path) -> ReportPaths:
        assert [len(table.trials) for table in tables] == [24, 24]
        return ReportPaths.from_folder(out, [], [])

    monkeypatch.setattr("study.report.comparison.compare_reports", compare)
    done = study("report", "theirs", "theirs", "--root", str(imported.root))
    assert done.code == 0, done.err
    assert "theirs-theirs-report/index.html" in done.out


@pytest.mark.parametrize(
    "uri",
    [
        *("foo", "ftp://x", "databricks", "sqlite:///", "sqlite://", "https://[::1"),
        "postgresql://ada:s3cret@127.0.0.1:abc/x",
    ],
)
def test_a_mistyped_store_is_one_line(uri: str, study: RunCommand) -> None:
    done = study("report", "x", "--tracking-uri", uri)
    assert done.code == 2
    assert uri.replace("s3cret", "***") in done.err
    assert (done.err.count("\n"), "s3cret" in done.err) == (1, False)
    assert len(done.err) < 200
