"""Is a store that will not take a study noticed before its trials run?"""

from __future__ import annotations

import json
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from study.errors import StudyError
from study.plan import load_plan
from study.reporting import Store, partial_text
from study.running import begin, execute
from study.tracking.address import check_address
from study.tracking.local import default_uri
from study.tracking.probe import check_store
from study.tracking.reader import read_table
from study.tracking.spool import Status
from study.tracking.watch import Watch
from study.tuning.run import RunSummary, run
from tests.study.driven import start


def test_another_study_of_the_same_name_leaves_the_first_alone(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    first = open_tracker(study_dir, study_id="one")
    story.open(first)
    story.trial(first, story.record("circle", 1))
    assert first.close(60.0)
    before = read_table(default_uri(study_dir), "groceries").trials
    second = open_tracker(study_dir, spool=study_dir / "other", study_id="two")
    second.open_study(name="groceries", plan=story.plan, losses=["circle"], note="")
    story.trial(second, story.record("circle", 1, seed=999))
    assert not second.close(2.0)
    assert "another study in the experiment 'groceries'" in second.status().error
    assert read_table(default_uri(study_dir), "groceries").trials.equals(before)
    again = open_tracker(study_dir, study_id="one")
    story.open(again)
    assert again.close(60.0)
    client = MlflowClient(default_uri(study_dir))
    former = client.get_experiment_by_name("groceries").experiment_id
    client.rename_experiment(former, "groceries of last year")
    third = open_tracker(study_dir, spool=study_dir / "third", study_id="two")
    story.open(third)
    story.trial(third, story.record("circle", 1, seed=999))
    assert third.close(60.0)
    assert read_table(default_uri(study_dir), "groceries").trials["seed"].tolist() == [999]


def _taken(study_dir: Path, mlflow_server: str, kind: str) -> str:
    """A store with an experiment `small` of another study."""
    uri = mlflow_server if kind == "server" else default_uri(study_dir)
    MlflowClient(uri).create_experiment("small", tags={"dml.study_id": "f00", "dml.study": "small"})
    return uri


@pytest.mark.parametrize("kind", ["server", "database"])
def test_a_name_that_is_taken_is_refused_before_anything_runs(
    kind: str, tmp_path: Path, study_dir: Path, mlflow_server: str
) -> None:
    uri = _taken(study_dir, mlflow_server, kind)
    home = start(tmp_path, tracking={"uri": uri})
    plan = load_plan(home.directory)
    with pytest.raises(StudyError, match="holds another study in the experiment 'small'"):
        run(home, plan)
    assert not home.spool.exists()
    shutil.rmtree(home.directory)
    with pytest.raises(StudyError, match="another name"):
        begin(home, plan)
    assert not home.directory.exists()
    MlflowClient(uri).delete_experiment(
        MlflowClient(uri).get_experiment_by_name("small").experiment_id
    )
    with pytest.raises(StudyError, match="was deleted: restore it"):
        begin(home, plan)


def test_a_study_keeps_its_id_and_old_plans_have_none(tmp_path: Path) -> None:
    home, other = start(tmp_path / "a"), start(tmp_path / "b")
    plan = load_plan(home.directory)
    assert len(plan.study_id) == 16
    assert plan.extended(3).study_id == plan.study_id != load_plan(other.directory).study_id
    path = home.directory / "plan.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["study_id"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert load_plan(home.directory).study_id == ""


def test_a_study_of_an_earlier_version_goes_on_without_an_id(study_dir: Path) -> None:
    uri = default_uri(study_dir)
    MlflowClient(uri).create_experiment("old", tags={"dml.study": "old"})
    assert check_store(uri, experiment="old", study_id="") == ""
    with pytest.raises(StudyError, match="another study"):
        check_store(uri, experiment="old", study_id="new")


def test_a_store_that_is_down_is_told_and_a_wrong_one_refused() -> None:
    for uri in ("http://ada:s3cret@127.0.0.1:9", "postgresql://ada:s3cret@127.0.0.1:9/x"):
        problem = check_store(uri, experiment="s")
        assert "does not answer" in problem
        assert "s3cret" not in problem
    with pytest.raises(StudyError, match=r"mysql://ada:\*\*\*@db/x cannot be opened: .*MySQLdb"):
        check_store("mysql://ada:s3cret@db/x")
    # A reader says the same, and at once.
    with pytest.raises(StudyError, match="does not answer"):
        read_table("postgresql://ada:s3cret@127.0.0.1:9/x", "s")
    with pytest.raises(StudyError, match="cannot be opened"):
        read_table("mysql://ada:s3cret@db/x", "s")


def test_a_password_may_hold_what_ends_a_host_elsewhere() -> None:
    check_address("postgresql://ada:s3/c?r#t:x@127.0.0.1:5432/x")


def test_a_database_without_encryption_is_refused_where_it_is_asked_for() -> None:
    """Waiting does not mend it, so trials must not start and wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as database:

        def answer() -> None:
            connection, _ = database.accept()
            with connection:
                connection.recv(8)  # the question whether it speaks TLS
                connection.sendall(b"N")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{database.getsockname()[1]}"
        with pytest.raises(StudyError, match=r"refuses: .*SSL"):
            check_store(f"postgresql://ada:s3cret@{address}/x?sslmode=require")
        thread.join()


def test_a_store_that_stays_away_is_said_once() -> None:
    said: list[str] = []
    now, status = 0.0, Status(error="no route")
    watch = Watch(lambda: status, said.append, clock=lambda: now)
    for second in range(60):
        now = float(second)
        watch.update()
    assert said == ["MLflow's store: no route; trials go on, and what it lacks waits on disk"]
    status = Status()
    for second in range(60, 70):
        now = float(second)
        watch.update()
    status = Status(error="again")
    for second in range(70, 120):
        now = float(second)
        watch.update()
    assert len(said) == 2


def test_a_note_of_an_earlier_run_is_not_said_again_and_the_same_of_this_one_is() -> None:
    said: list[str] = []
    status = Status(note="circle is back")
    watch = Watch(lambda: status, said.append)
    watch.tell_note()
    assert said == []
    for note in ("", "circle is back", "circle is back"):
        status = Status(note=note)
        watch.tell_note()
    assert said == ["MLflow's store: circle is back"]


def test_a_report_says_what_its_store_lacks(tmp_path: Path, open_tracker: Any, story: Any) -> None:
    store = Store("groceries", "http://127.0.0.1:9", tmp_path / "report", tmp_path / "spool")
    assert partial_text(store) == ""
    tracker = open_tracker(tmp_path, "http://127.0.0.1:9")
    story.open(tracker)
    assert not tracker.close(0.5)
    assert "lacks records" in partial_text(store)
    assert "study resume groceries" in partial_text(store)


def test_a_study_whose_records_wait_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = start(tmp_path)
    plan = load_plan(home.directory)
    summary = RunSummary(True, [], 1.0, tracked=False, tracking_error="no route")
    monkeypatch.setattr("study.tuning.run.run", lambda *_, **__: summary)
    assert execute(home, plan) == 1
    assert "(no route)" in (said := capsys.readouterr().err)
    assert "study resume small" in said
    summary = RunSummary(True, [], 1.0, tracked=True, refused=3)
    monkeypatch.setattr("study.reporting.show_results", lambda *_: None)
    assert execute(home, plan) == 1
    assert "refused 3 record(s)" in capsys.readouterr().err
