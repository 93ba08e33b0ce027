"""The store of a study's results is found, and missing records are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.directory import create_study_directory, default_tracking_uri, new_study_directory
from study.errors import StudyError
from study.results import ResultStore, find_store, missing_records_warning
from study.tracking.spool import SpoolWriter
from tests.support.scheduler_simulation import make_plan


def test_the_store_of_a_plan_is_in_its_directory_or_where_the_plan_says(tmp_path: Path) -> None:
    for name, uri in (("own", None), ("served", "http://127.0.0.1:9")):
        study_dir = new_study_directory(name, tmp_path)
        create_study_directory(study_dir, make_plan(name=name, tracking={"uri": uri}))
        store = find_store(name, None, tmp_path)
        assert store.uri == (uri or default_tracking_uri(study_dir.path))
        assert (store.report, store.spool) == (study_dir.report_dir, study_dir.spool_dir)


def test_a_given_store_needs_no_study_on_this_machine(tmp_path: Path) -> None:
    store = find_store("theirs", "http://127.0.0.1:9", tmp_path)
    assert store == ResultStore("theirs", "http://127.0.0.1:9", Path("theirs-report"))
    with pytest.raises(StudyError, match="no study 'theirs'"):
        find_store("theirs", None, tmp_path)


def test_a_directory_with_a_store_and_no_plan_is_an_imported_study(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "mlflow.db").touch()
    store = find_store("theirs", None, tmp_path)
    assert store.uri == default_tracking_uri(folder)
    assert store.report == folder / "report"
    assert missing_records_warning(store) == ""


def test_unsent_records_are_a_warning_with_the_command_to_send_them(tmp_path: Path) -> None:
    store = ResultStore("s", "http://127.0.0.1:9", tmp_path / "report", tmp_path / "spool")
    assert missing_records_warning(store) == ""
    SpoolWriter(tmp_path / "spool").append({"op": "note"}, sync=True)
    warning = missing_records_warning(store)
    assert str(store.spool) in warning
    assert "study resume s" in warning
