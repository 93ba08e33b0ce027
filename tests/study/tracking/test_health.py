"""Stores that do not answer or refuse a study, found before its trials run."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from pathlib import Path

import pytest
from mlflow import MlflowClient

from study.cli.execute import check_and_create_study, run_and_print
from study.config.plan import load_plan
from study.directory import default_tracking_uri
from study.errors import StudyError
from study.results import ResultStore, missing_records_warning
from study.runner.run import RunSummary, run
from study.tracking.health import check_store
from study.tracking.reader import read_table
from study.utils.tracking_uri import check_tracking_uri
from tests.support.running_studies import create_study
from tests.support.tracked_study import OpenTracker, TrackedStudy

pytestmark = pytest.mark.server


def test_another_study_of_the_same_name_does_not_touch_the_first(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    first = open_tracker(study_dir, study_id="one")
    tracked_study.open_study(first)
    tracked_study.log_trial(first, tracked_study.make_record("circle", 1))
    assert first.close(60.0)
    before = read_table(default_tracking_uri(study_dir), "groceries").trials
    second = open_tracker(study_dir, spool=study_dir / "other", study_id="two")
    second.open_study(name="groceries", plan=tracked_study.plan, losses=["circle"], note="")
    tracked_study.log_trial(second, tracked_study.make_record("circle", 1, seed=999))
    assert not second.close(2.0)
    assert "'groceries' holds another study" in second.get_status().error
    assert read_table(default_tracking_uri(study_dir), "groceries").trials.equals(before)
    again = open_tracker(study_dir, study_id="one")
    tracked_study.open_study(again)
    assert again.close(60.0)
    client = MlflowClient(default_tracking_uri(study_dir))
    former = client.get_experiment_by_name("groceries").experiment_id
    client.rename_experiment(former, "groceries of last year")
    third = open_tracker(study_dir, spool=study_dir / "third", study_id="two")
    tracked_study.open_study(third)
    tracked_study.log_trial(third, tracked_study.make_record("circle", 1, seed=999))
    assert third.close(60.0)
    assert read_table(default_tracking_uri(study_dir), "groceries").trials["seed"].tolist() == [999]


def _taken(study_dir: Path, mlflow_server: str, kind: str) -> str:
    """Create an experiment `small` of another study; return the store's URI."""
    uri = mlflow_server if kind == "server" else default_tracking_uri(study_dir)
    MlflowClient(uri).create_experiment("small", tags={"dml.study_id": "f00", "dml.study": "small"})
    return uri


@pytest.mark.parametrize("kind", ["server", "database"])
def test_a_name_that_is_taken_is_refused_before_anything_runs(
    kind: str, tmp_path: Path, study_dir: Path, mlflow_server: str
) -> None:
    uri = _taken(study_dir, mlflow_server, kind)
    directory = create_study(tmp_path, tracking={"uri": uri})
    plan = load_plan(directory.path)
    with pytest.raises(StudyError, match="'small' holds another study"):
        run(directory, plan)
    assert not directory.spool_dir.exists()
    shutil.rmtree(directory.path)
    with pytest.raises(StudyError, match="another name"):
        check_and_create_study(directory, plan)
    assert not directory.path.exists()
    MlflowClient(uri).delete_experiment(
        MlflowClient(uri).get_experiment_by_name("small").experiment_id
    )
    with pytest.raises(StudyError, match="'small' was deleted"):
        check_and_create_study(directory, plan)


def test_a_study_keeps_its_id_and_old_plans_have_none(tmp_path: Path) -> None:
    study_dir, other = create_study(tmp_path / "a"), create_study(tmp_path / "b")
    plan = load_plan(study_dir.path)
    assert len(plan.study_id) == 16
    assert plan.with_extra_stage(3).study_id == plan.study_id != load_plan(other.path).study_id
    path = study_dir.path / "plan.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["study_id"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert load_plan(study_dir.path).study_id == ""


def test_a_study_of_an_earlier_version_continues_without_an_id(study_dir: Path) -> None:
    uri = default_tracking_uri(study_dir)
    MlflowClient(uri).create_experiment("old", tags={"dml.study": "old"})
    assert check_store(uri, experiment="old", study_id="") == ""
    with pytest.raises(StudyError, match="another study"):
        check_store(uri, experiment="old", study_id="new")


def test_a_store_that_is_down_is_reported_and_a_wrong_one_is_an_error() -> None:
    for uri in ("http://ada:s3cret@127.0.0.1:9", "postgresql://ada:s3cret@127.0.0.1:9/x"):
        problem = check_store(uri, experiment="s")
        assert "does not answer" in problem
        assert "s3cret" not in problem
    with pytest.raises(StudyError, match=r"mysql://ada:\*\*\*@db/x: .*MySQLdb"):
        check_store("mysql://ada:s3cret@db/x")
    # A reader reports the same, without retries.
    with pytest.raises(StudyError, match="does not answer"):
        read_table("postgresql://ada:s3cret@127.0.0.1:9/x", "s")
    with pytest.raises(StudyError, match="cannot open"):
        read_table("mysql://ada:s3cret@db/x", "s")


def test_a_password_may_contain_the_delimiters_of_a_url() -> None:
    check_tracking_uri("postgresql://ada:s3/c?r#t:x@127.0.0.1:5432/x")


def test_a_database_without_required_encryption_is_an_error() -> None:
    """Waiting does not fix it, so trials must not start."""
    with socket.create_server(("127.0.0.1", 0)) as database:

        def answer() -> None:
            connection, _ = database.accept()
            with connection:
                connection.recv(8)  # the request for TLS
                connection.sendall(b"N")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{database.getsockname()[1]}"
        with pytest.raises(StudyError, match=r"refuses the request: .*SSL"):
            check_store(f"postgresql://ada:s3cret@{address}/x?sslmode=require")
        thread.join()


def test_a_report_warns_of_missing_records(
    tmp_path: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    store = ResultStore("groceries", "http://127.0.0.1:9", tmp_path / "report", tmp_path / "spool")
    assert missing_records_warning(store) == ""
    tracker = open_tracker(tmp_path, "http://127.0.0.1:9")
    tracked_study.open_study(tracker)
    assert not tracker.close(0.5)
    assert "lacks records" in missing_records_warning(store)
    assert "study resume groceries" in missing_records_warning(store)


def test_a_study_with_unsent_records_exits_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study_dir = create_study(tmp_path)
    plan = load_plan(study_dir.path)
    summary = RunSummary(True, [], 1.0, is_tracked=False, tracking_error="no route")
    monkeypatch.setattr("study.runner.run.run", lambda *_, **__: summary)
    assert run_and_print(study_dir, plan) == 1
    assert "no route" in (error := capsys.readouterr().err)
    assert "study resume small" in error
    summary = RunSummary(True, [], 1.0, is_tracked=True, n_refused_records=3)
    monkeypatch.setattr("study.cli.report_text.print_results", lambda *_: None)
    assert run_and_print(study_dir, plan) == 1
    assert "refused 3 record" in capsys.readouterr().err
