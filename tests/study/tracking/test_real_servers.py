"""Do real servers get everything: killed and restarted, behind passwords, tokens and TLS?"""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy
from mlflow import MlflowClient

from study.errors import StudyError
from study.tracking.address import with_driver
from study.tracking.probe import check_store
from study.tracking.reader import read_table
from study.tracking.server import free_port, serve

SECRET = "s3cret-word-of-ada"


def _server_of(port: int) -> psutil.Process:
    """The leader of the process group that listens on the port."""
    listening = [
        entry.pid
        for entry in psutil.net_connections("tcp")
        if entry.status == psutil.CONN_LISTEN and entry.laddr.port == port and entry.pid
    ]
    return psutil.Process(os.getpgid(listening[0]))


def test_a_taken_port_is_named(empty_store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        store = f"sqlite:///{empty_store}"
        with pytest.raises(StudyError, match=f"port {port} .*is taken"), serve(store, port=port):
            pass


@pytest.mark.faults
def test_a_server_killed_and_restarted_in_the_middle(
    study_dir: Path, open_tracker: Any, story: Any, doubles: Any
) -> None:
    port, store = free_port(), f"sqlite:///{study_dir / 'mlflow.db'}"
    root = study_dir / "artifacts"
    # The study begins while no server is up.
    tracker = open_tracker(study_dir, f"http://127.0.0.1:{port}", process=True, patience=0.5)
    story.open(tracker)
    for number in range(5):
        story.trial(tracker, story.record("circle", number))
    with serve(store, port=port, artifact_root=root):
        for number in range(5, 15):
            story.trial(tracker, story.record("circle", number))
            time.sleep(0.1)
        _wait(lambda: _count(study_dir) > 3)
        leader = _server_of(port)
        family = [leader, *leader.children(recursive=True)]
        os.killpg(leader.pid, signal.SIGKILL)
        for number in range(15, 25):
            story.trial(tracker, story.record("circle", number))
            time.sleep(0.02)
        _wait(lambda: tracker.status().error)
        assert not tracker.flush(0.0)
    psutil.wait_procs(family, timeout=10)
    with serve(store, port=port, artifact_root=root) as address:
        family = psutil.Process(_server_of(port).pid).children(recursive=True)
        tracker.end_study(state="FINISHED")
        assert tracker.flush(60.0)
        assert tracker.status().error == ""
        table = read_table(address, "groceries")
    assert not [process for process in family if process.is_running()]
    assert table.trials["state"].tolist() == ["finished"] * 25
    assert len(table.curves) == 75
    assert tracker.status().refused == 0
    assert doubles(study_dir / "mlflow.db") == []


@pytest.mark.faults
def test_basic_auth_passes_through_and_stays_out_of_sight(
    study_dir: Path,
    empty_store: Path,
    open_tracker: Any,
    story: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = study_dir / "auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = READ\nadmin_username = ada\n"
        f"database_uri = sqlite:///{study_dir / 'auth.db'}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(config))
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", SECRET)
    monkeypatch.setenv("MLFLOW_FLASK_SERVER_SECRET_KEY", "cookies")
    store = f"sqlite:///{study_dir / 'mlflow.db'}"
    with serve(store, artifact_root=study_dir / "artifacts", basic_auth=True) as address:
        stranger = open_tracker(study_dir, address, process=True)
        story.open(stranger)
        story.trial(stranger, story.record("circle", 1))
        _wait(lambda: stranger.status().error)
        assert not stranger.flush(0.0)
        assert "401" in stranger.status().error or "credentials" in stranger.status().error
        stranger.close(0.0)
        with pytest.raises(StudyError):
            read_table(address, "groceries")
        # User and password from MLflow's own variables.
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
        known = open_tracker(study_dir, address, process=True)
        story.trial(known, story.record("circle", 2))
        assert known.close(60.0)
        assert len(read_table(address, "groceries").trials) == 2
        # Or inside the address.
        monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
        monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
        inside = address.replace("://", f"://ada:{SECRET}@")
        assert len(read_table(inside, "groceries").trials) == 2
        told = open_tracker(study_dir, inside, process=True)
        story.open(told)
        told.trial_started(story.record("circle", 3, tags={"store": inside}, fixed={"at": inside}))
        told.trial_ended("circle-0003", state="failed", error=f"no {inside}", timestamp=1.8e9)
        told.note(f"kept at {inside}")
        assert told.close(60.0)
    (study_dir / "auth.db").unlink()
    for path in study_dir.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.fixture
def guarded(mlflow_server: str, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The session's server behind TLS (a certificate of our own) and a bearer token."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )

    class Gate(http.server.BaseHTTPRequestHandler):
        def _pass(self) -> None:
            if self.headers.get("Authorization") != f"Bearer {SECRET}":
                self.send_error(401)
                return
            size = int(self.headers.get("Content-Length") or 0)
            kept = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
            request = urllib.request.Request(
                mlflow_server + self.path,
                data=self.rfile.read(size) if size else None,
                headers=kept,
                method=self.command,
            )
            try:
                with urllib.request.urlopen(request) as answer:
                    status, body = 200, answer.read()
            except urllib.error.HTTPError as refusal:
                status, body = refusal.code, refusal.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = _pass  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}", certificate
    server.shutdown()
    server.server_close()


def test_token_and_certificate_pass_through(
    guarded: tuple[str, Path],
    tmp_path: Path,
    open_tracker: Any,
    story: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, certificate = guarded
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
    tracker = open_tracker(tmp_path, address, process=True, experiment="guarded")
    tracker.open_study(name="guarded", plan=story.plan, losses=["circle"], note="")
    story.trial(tracker, story.record("circle", 1))
    assert tracker.close(60.0)
    assert read_table(address, "guarded").trials["trial"].tolist() == ["circle-0001"]
    assert check_store(address) == ""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "another-word")
    with pytest.raises(StudyError, match="refuses"):
        check_store(address)
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    with pytest.raises(StudyError, match="refuses"):
        check_store(address)
    with pytest.raises(StudyError, match="does not answer"):
        read_table(address, "guarded")


@pytest.mark.postgres
def test_postgresql_holds_the_same_study(
    postgres: str, finished: Path, tmp_path: Path, open_tracker: Any, story: Any
) -> None:
    root = tmp_path / "artifacts"
    tracker = open_tracker(tmp_path, postgres, process=True, artifact_root=root)
    story.tell(tracker)
    assert tracker.close(120.0)
    there = read_table(postgres, "groceries")
    here = read_table(f"sqlite:///{finished / 'mlflow.db'}", "groceries")
    assert there.trials.to_csv() == here.trials.to_csv()
    assert there.curves.to_csv() == here.curves.to_csv()
    assert there.baseline == here.baseline
    again = open_tracker(tmp_path, postgres, artifact_root=root)
    story.tell(again)
    assert again.flush(120.0)
    assert read_table(postgres, "groceries").curves.to_csv() == here.curves.to_csv()
    with _read_only(postgres):  # as during a failover
        story.trial(again, story.record("circle", 20))
        _wait(lambda: "read-only" in again.status().error)
    assert again.close(60.0)
    assert again.status().refused == 0
    assert "circle-0020" in set(read_table(postgres, "groceries").trials["trial"])
    shutil.rmtree(root)  # as seen from another machine
    assert read_table(postgres, "groceries").spaces == here.spaces
    client = MlflowClient(with_driver(postgres))
    experiment = client.get_experiment_by_name("groceries")
    runs = client.search_runs([experiment.experiment_id], max_results=500)
    assert len(runs) == 27
    for path in (tmp_path / "spool").iterdir():
        assert b"s3cret-word" not in path.read_bytes()


@contextlib.contextmanager
def _read_only(uri: str) -> Iterator[None]:
    engine = sqlalchemy.create_engine(with_driver(uri), isolation_level="AUTOCOMMIT")
    setting = "default_transaction_read_only"
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"ALTER SYSTEM SET {setting} = on"))
        connection.execute(sqlalchemy.text("SELECT pg_reload_conf()"))
        yield
        connection.execute(sqlalchemy.text(f"ALTER SYSTEM RESET {setting}"))
        connection.execute(sqlalchemy.text("SELECT pg_reload_conf()"))
    engine.dispose()


def _wait(condition: Any) -> None:
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _count(folder: Path) -> int:
    import sqlite3

    with sqlite3.connect(folder / "mlflow.db") as connection:
        return int(connection.execute("SELECT COUNT(*) FROM runs").fetchone()[0])
