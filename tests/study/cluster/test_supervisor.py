"""On the head of a cluster: studies that outlive their starter, and what runs beside Ray."""

from __future__ import annotations

import contextlib
import fcntl
import http.server
import io
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.cluster import detached, services
from study.cluster.attach import run_file
from study.cluster.head import Head
from study.cluster.places import CHECKPOINTS_VARIABLE, MLFLOW_PORT, STAMP, TRACKING_VARIABLE
from study.errors import StudyError
from study.folders import cache_dir, cache_of_each_host
from study.main import main
from study.plan import load_plan, save_plan
from study.planning import build_plan
from study.read_file import read_study_file
from study.tracking.server import STORE_VARIABLE
from tests.study.tuning_simulation import drive, make_plan, open_ledger
from trainables.hosts import of_this_host

FILE = "name: far\ndata: glyphs\nlosses: [triplet]\nsearch: {trials: 2, repeats: 1}\n"


@pytest.fixture
def head_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path / "studies"))
    monkeypatch.setenv(TRACKING_VARIABLE, "http://127.0.0.1:5000")
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, "s3://bucket/x")
    return tmp_path / "studies"


def prepared(text: str, *options: str) -> tuple[list[str], str]:
    run = detached.Run("far")
    run.folder.mkdir(parents=True, exist_ok=True)
    return detached._prepared(run, list(options), text)


def test_a_new_study_gets_what_the_cluster_has(head_folder: Path) -> None:
    command, _ = prepared(FILE, "--no-report")
    path = detached.Run("far").file
    assert command == ["run", str(path), "--no-report"]
    assert list(path.parent.iterdir()) == [path], "nothing else is left"
    file = read_study_file(path)
    assert file.tracking.uri == "http://127.0.0.1:5000"
    assert file.storage.checkpoints == "s3://bucket/x"
    prepared(FILE + "tracking: {uri: 'http://x'}\nstorage: {checkpoints: /mnt/y}\n")
    own_places = read_study_file(path)
    assert (own_places.tracking.uri, own_places.storage.checkpoints) == ("http://x", "/mnt/y")


def test_the_same_file_again_goes_on_and_another_is_refused(head_folder: Path) -> None:
    plan = make_plan(
        name="far",
        losses=["triplet"],
        training={},
        search={"trials": 2, "repeats": 1},
        tracking={"uri": "http://127.0.0.1:5000"},
        storage={"checkpoints": "s3://bucket/x"},
    )
    text = FILE + "training: {epochs: 9}\n"
    home = head_folder / "far"
    home.mkdir(parents=True)
    save_plan(plan, home)
    assert prepared(text)[0] == ["resume", "far", "--report"]
    with pytest.raises(StudyError, match=r"study far exists .*`search.trials` differs"):
        prepared(text.replace("trials: 2", "trials: 5"))
    drive(open_ledger(load_plan(home), home))
    command, news = prepared(text)
    assert command == []
    assert "far is finished" in news


def test_following_starts_where_it_was_broken_off_and_ends_with_the_study(
    head_folder: Path,
) -> None:
    run = detached.Run("far")
    with pytest.raises(StudyError, match="no study 'far' was started"):
        detached.follow("far", 0, "-", io.BytesIO())
    run.folder.mkdir(parents=True)
    run.keep_log()
    run.log.write_bytes(b"one\ntwo\n")
    with pytest.raises(StudyError, match="ended without a word"):
        detached.follow("far", 0, "-", io.BytesIO())
    run.exit.write_text("1")

    def followed(offset: int, known: str) -> tuple[str, str]:
        out = io.BytesIO()
        assert detached.follow("far", offset, known, out) == 1
        stamp, _, output = out.getvalue().decode().partition("\n")
        assert stamp.startswith(STAMP)
        return stamp.removeprefix(STAMP), output

    stamp, output = followed(0, "-")
    assert output == "one\ntwo\n"
    assert followed(4, stamp) == (stamp, "two\n")
    run.keep_log()
    run.log.write_bytes(b"another\nrun\n")
    new, output = followed(4, stamp)
    assert new != stamp
    assert output == "another\nrun\n", "whole: the place was one in the old output"
    out = io.BytesIO()
    assert detached.follow("far", 4, None, out) == 1
    assert out.getvalue().decode() == output[4:], "asked by who knows of no stamps"


def test_a_study_that_runs_is_followed_not_started_twice(head_folder: Path) -> None:
    lock = detached.Run("far").hold()
    assert detached.Run("far").folder.stat().st_mode & 0o077 == 0
    assert lock is not None
    assert detached.start("far", ["run"], FILE) == "far is running; following it"
    assert detached.start("far", ["resume", "far"], "") == "far is running; following it"
    with pytest.raises(StudyError, match="extend it when it has ended"):
        detached.start("far", ["extend", "far", "--trials", "3"], "")
    fcntl.flock(lock, fcntl.LOCK_UN)
    assert not detached.Run("far").is_running()


def test_an_edited_file_of_a_study_that_runs_is_refused_not_ignored(
    head_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has a plan the file it was started with counts, then its plan."""
    prepared(FILE)
    lock = detached.Run("far").hold()
    assert lock is not None
    for planned in (False, True):
        if planned:
            home = head_folder / "far"
            home.mkdir()
            save_plan(build_plan(read_study_file(detached.Run("far").file)), home)
        assert detached.start("far", ["run"], FILE) == "far is running; following it"
        monkeypatch.setattr(sys, "stdin", io.StringIO(FILE.replace("repeats: 1", "repeats: 2")))
        assert detached.main(["start", "far", "run"]) == 2
        error = capsys.readouterr().err
        assert "far is running with another file (`search.repeats` differs)" in error
        assert error.count("\n") == 1
    lock.close()


def test_no_password_is_on_a_command_line(
    head_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on ssh's here nor on that of the study there."""
    words: list[str] = []
    sent: list[str] = []

    def start(cluster: Path, name: str, command: list[str], *, content: str, detach: bool) -> int:
        words.extend(Head("own", "h0", "me").command(["start", name, *command]))
        sent.append(content)
        return 0

    monkeypatch.setattr("study.cluster.attach.start", start)
    (tmp_path / "my.yaml").write_text(FILE)
    uri = "postgresql://ada:s3cret@db/mlflow"
    overrides = [f"tracking.uri={uri}", "name='1e3'", "training.adam_eps=1e-4"]
    run_file(tmp_path / "c.yaml", tmp_path / "my.yaml", overrides, report=True, detach=True)
    assert "s3cret" not in " ".join(words)
    assert "run --report" in words[-1]
    (there,) = sent
    command, _ = prepared(there)
    assert "s3cret" not in " ".join(command)
    file = read_study_file(Path(command[1]))
    assert (file.tracking.uri, file.name) == (uri, "1e3")
    assert file.training["adam_eps"] == 1e-4


def test_hosts_that_share_a_home_keep_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper of one is not taken for that of another; nor is its cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DML_STUDY_CACHE", str(tmp_path / "cache" / "{host}"))
    monkeypatch.setattr(services, "STOP_SECONDS", 2.0)
    found = []
    for host in ("one", "two"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        own = services.FOLDER.expanduser() / host
        own.mkdir(parents=True)
        lock = (own / "keeper").open("a+")
        assert services._hold(lock), "free on this host"
        found.append((lock, cache_dir()))
    assert [path.name for _, path in found] == ["one", "two"]
    assert cache_of_each_host().name == "{host}", "trials elsewhere read their own"
    assert of_this_host(str(cache_of_each_host())).endswith("/cache/two")
    monkeypatch.setattr(socket, "gethostname", lambda: "three")
    started = time.monotonic()
    assert services.main(["stop"]) == 0
    assert time.monotonic() - started < 1.0, "waits for no other host's keeper"
    for lock, _ in found:
        lock.close()


def test_a_server_that_does_not_come_up_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path / "studies"))
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", MLFLOW_PORT))
        taken.listen()
        assert services.main(["head"]) == 1
    error = capsys.readouterr().err
    assert f"port {MLFLOW_PORT} of 127.0.0.1 is taken" in error
    assert "keeper.log" in error
    assert error.count("\n") == 1


def test_a_server_that_dies_or_falls_silent_is_started_again_until_ray_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One dies, one does not start, one accepts and never answers; then Ray ends."""
    for name in ("CHECK_SECONDS", "PATIENCE_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(services, name, 0.05)
    monkeypatch.setattr(services, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr("study.tracking.server.ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(services, "_runs", lambda name: len(asked) < 4 or asked[-1] < 3)
    asked: list[int] = []  # of each server, how often it was asked

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked[-1] += 1
            if len(asked) == 1 and asked[-1] == 3:
                threading.Thread(target=die, args=(self.server,)).start()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def die(server: socketserver.BaseServer) -> None:
        server.shutdown()
        server.server_close()

    @contextlib.contextmanager
    def mlflow() -> Iterator[str]:
        asked.append(0)
        if len(asked) == 2:
            raise StudyError("the disk is full")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
            if len(asked) != 3:
                threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}"
            if len(asked) != 3:
                server.shutdown()

    monkeypatch.setattr(services, "_mlflow", mlflow)
    with (tmp_path / "keeper").open("w+") as lock:
        assert services._keep_mlflow(lock) == 0
    assert asked[0] == 3
    assert asked[1:3] == [0, 0]
    assert asked[3] >= 3
    assert len(asked) == 4
    said = capsys.readouterr().out
    assert said.count("the MLflow server is gone; starting it again\n") == 2
    assert said.count("the disk is full\n") == 1


@pytest.mark.parametrize(
    ("raylet", "starts", "looks"),
    [
        ([False] * 3 + [True] * 5, [True] * 2, 8),
        ([], [True] * 40, 40),  # the start takes its time, and is broken off
        ([], [], 5),
    ],
    ids=["ran", "broken off", "never came"],
)
def test_what_ray_leaves_on_a_worker_is_ended(
    raylet: list[bool],
    starts: list[bool],
    looks: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when `ray start` was broken off before a raylet came, or none ever began."""
    for name, seconds in (("CHECK_SECONDS", 0.02), ("PATIENCE_SECONDS", 0.05)):
        monkeypatch.setattr(services, name, seconds)
    monkeypatch.setattr(services, "FIRST_SECONDS", 0.2)
    ray = tmp_path / "ray"
    ray.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/called\n")
    ray.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    looked: list[str] = []
    alive, started = iter(raylet), iter(starts)

    def runs(name: str) -> bool:
        looked.append(name)
        return next(alive, False)

    monkeypatch.setattr(services, "_runs", runs)
    monkeypatch.setattr(services, "_starts", lambda: next(started, False))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert services.keep(tmp_path, "worker") == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (tmp_path / "called").read_text() == "stop --force\n"
    assert set(looked) == {"raylet"}
    assert len(looked) > looks


def test_a_ray_that_is_being_started_is_recognised() -> None:
    assert services.is_start(["/home/me/.venv/bin/python", "/home/me/.venv/bin/ray", "start"])
    assert services.is_start(["ray", "start", "--address=10.0.0.1:6379"])
    assert not services.is_start(["python", "ray", "status"])
    assert not services.is_start(["bash", "-c", "ray start"])
    assert not services.is_start([])
    assert (Path(sys.executable).parent / "ray").read_text().startswith("#!"), "of this name"


def test_a_killed_keeper_is_revived_and_takes_the_place_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that was ready and did not end in order; and another's server is left alone."""
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path))
    launched: list[str] = []
    monkeypatch.setattr(services, "_launch", lambda folder, role: launched.append(role))
    path = tmp_path / "keeper"
    assert services.revive(tmp_path) is None
    for words, alive in (("", False), ("17", False), ("17 ready", True), ("17 ready", False)):
        path.write_text(words)
        with path.open("a+") as lock:
            assert not alive or services._hold(lock)
            services.revive(tmp_path)
    assert launched == ["head"], "the last one"

    code = [sys.executable, "-c", "import time; time.sleep(60)  # mlflow"]
    own = {**os.environ, STORE_VARIABLE: services._store()}
    left = subprocess.Popen(code, env=own, start_new_session=True)
    other = subprocess.Popen(code, env={**own, STORE_VARIABLE: "sqlite:///x"})
    try:
        services.stop(tmp_path)
        assert left.wait(timeout=10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        left.kill()
        other.kill()
        other.wait()
    assert path.read_text() == "", "ended in order: nobody is to be revived"


def test_names_that_are_no_names_start_nothing(head_folder: Path) -> None:
    with pytest.raises(SystemExit):
        detached.main(["start", "../x", "run"])
    assert not head_folder.exists()


def test_a_running_study_is_stopped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan()
    home = tmp_path / "s"
    home.mkdir()
    save_plan(plan, home)
    code = (
        "import sys, time; from pathlib import Path; from study.home import StudyHome\n"
        "with StudyHome(Path(sys.argv[1])).locked():\n    print('held', flush=True)\n"
        "    time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(home)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    started = time.monotonic()
    with pytest.raises(SystemExit) as done:
        main(["stop", "s", "--root", str(tmp_path)])
    assert done.value.code == 0
    assert holder.wait(timeout=10) == -15
    assert time.monotonic() - started < 30
    with pytest.raises(SystemExit) as again:
        main(["stop", "s", "--root", str(tmp_path)])
    assert again.value.code == 2
