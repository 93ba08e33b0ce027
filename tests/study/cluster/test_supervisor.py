"""The supervisor of a node: MLflow on the head, and what Ray leaves on a worker."""

from __future__ import annotations

import contextlib
import http.server
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

from study.cluster import supervisor
from study.cluster.constants import (
    MLFLOW_PORT,
)
from study.errors import StudyError
from study.tracking.ui_server import STORE_URI_VARIABLE
from study.utils.paths import cache_dir, cache_dir_template
from trainables.utils.host_paths import expand_host


def test_hosts_that_share_a_home_have_separate_locks_and_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DML_STUDY_CACHE", str(tmp_path / "cache" / "{host}"))
    monkeypatch.setattr(supervisor, "SUPERVISOR_STOP_SECONDS", 2.0)
    locks = []
    for host in ("one", "two"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        own = supervisor.STATE_FOLDER.expanduser() / host
        own.mkdir(parents=True)
        lock = (own / "keeper").open("a+")
        assert supervisor._try_lock(lock), "free on this host"
        locks.append((lock, cache_dir()))
    assert [path.name for _, path in locks] == ["one", "two"]
    assert cache_dir_template().name == "{host}", "trials on other hosts use their own"
    assert expand_host(str(cache_dir_template())).endswith("/cache/two")
    monkeypatch.setattr(socket, "gethostname", lambda: "three")
    started = time.monotonic()
    assert supervisor.main(["stop"]) == 0
    assert time.monotonic() - started < 1.0, "other hosts' supervisors are not waited for"
    for lock, _ in locks:
        lock.close()


def test_a_server_that_does_not_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path / "studies"))
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", MLFLOW_PORT))
        taken.listen()
        assert supervisor.main(["head"]) == 1
    error = capsys.readouterr().err
    assert f"port {MLFLOW_PORT} of 127.0.0.1 is in use" in error
    assert "keeper.log" in error
    assert error.count("\n") == 1


def test_a_server_that_dies_or_stops_answering_is_restarted_until_ray_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One dies, one does not start, one accepts and never answers; then Ray ends."""
    for name in ("CHECK_SECONDS", "RAY_ABSENCE_SECONDS", "MLFLOW_RETRY_SECONDS"):
        monkeypatch.setattr(supervisor, name, 0.05)
    monkeypatch.setattr(supervisor, "MLFLOW_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr("study.tracking.ui_server.HEALTH_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(
        supervisor, "_is_process_running", lambda name: len(n_requests) < 4 or n_requests[-1] < 3
    )
    n_requests: list[int] = []  # per server

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            n_requests[-1] += 1
            if len(n_requests) == 1 and n_requests[-1] == 3:
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
        n_requests.append(0)
        if len(n_requests) == 2:
            raise StudyError("the disk is full")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
            if len(n_requests) != 3:
                threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}"
            if len(n_requests) != 3:
                server.shutdown()

    monkeypatch.setattr(supervisor, "_run_mlflow", mlflow)
    with (tmp_path / "keeper").open("w+") as lock:
        assert supervisor._supervise_mlflow(lock) == 0
    assert n_requests[0] == 3
    assert n_requests[1:3] == [0, 0]
    assert n_requests[3] >= 3
    assert len(n_requests) == 4
    output = capsys.readouterr().out
    assert output.count("restarting") == 2
    assert output.count("the disk is full\n") == 1


@pytest.mark.parametrize(
    ("raylet", "starts", "looks"),
    [
        ([False] * 3 + [True] * 5, [True] * 2, 8),
        ([], [True] * 40, 40),  # a slow start that is interrupted
        ([], [], 5),
    ],
    ids=["ran", "interrupted", "never started"],
)
def test_processes_that_ray_leaves_on_a_worker_are_stopped(
    raylet: list[bool],
    starts: list[bool],
    looks: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if `ray start` was interrupted before a raylet ran, or was never called."""
    for name, seconds in (("CHECK_SECONDS", 0.02), ("RAY_ABSENCE_SECONDS", 0.05)):
        monkeypatch.setattr(supervisor, name, seconds)
    monkeypatch.setattr(supervisor, "RAY_ARRIVAL_TIMEOUT_SECONDS", 0.2)
    ray = tmp_path / "ray"
    ray.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/called\n")
    ray.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    looked: list[str] = []
    alive, started = iter(raylet), iter(starts)

    def runs(name: str) -> bool:
        looked.append(name)
        return next(alive, False)

    monkeypatch.setattr(supervisor, "_is_process_running", runs)
    monkeypatch.setattr(supervisor, "_is_ray_starting", lambda: next(started, False))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert supervisor.supervise_node(tmp_path, "worker") == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (tmp_path / "called").read_text() == "stop --force\n"
    assert set(looked) == {"raylet"}
    assert len(looked) > looks


def test_the_command_line_of_ray_start_is_recognised() -> None:
    assert supervisor.is_ray_start_command(
        ["/home/me/.venv/bin/python", "/home/me/.venv/bin/ray", "start"]
    )
    assert supervisor.is_ray_start_command(["ray", "start", "--address=10.0.0.1:6379"])
    assert not supervisor.is_ray_start_command(["python", "ray", "status"])
    assert not supervisor.is_ray_start_command(["bash", "-c", "ray start"])
    assert not supervisor.is_ray_start_command([])
    assert (Path(sys.executable).parent / "ray").read_text().startswith("#!"), "of this name"


def test_a_killed_supervisor_is_restarted_and_replaces_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if it was ready and did not exit normally; servers on other stores are not touched."""
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path))
    launched: list[str] = []
    monkeypatch.setattr(
        supervisor, "_launch_supervisor", lambda folder, role: launched.append(role)
    )
    path = tmp_path / "keeper"
    assert supervisor.restart_supervisor(tmp_path) is None
    for content, is_alive in (("", False), ("17", False), ("17 ready", True), ("17 ready", False)):
        path.write_text(content)
        with path.open("a+") as lock:
            assert not is_alive or supervisor._try_lock(lock)
            supervisor.restart_supervisor(tmp_path)
    assert launched == ["head"], "the last one"

    code = [sys.executable, "-c", "import time; time.sleep(60)  # mlflow"]
    own = {**os.environ, STORE_URI_VARIABLE: supervisor._store_uri()}
    orphan = subprocess.Popen(code, env=own, start_new_session=True)
    other = subprocess.Popen(code, env={**own, STORE_URI_VARIABLE: "sqlite:///x"})
    try:
        supervisor.stop_supervisor(tmp_path)
        assert orphan.wait(timeout=10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        orphan.kill()
        other.kill()
        other.wait()
    assert path.read_text() == "", "a supervisor that was stopped is not restarted"
