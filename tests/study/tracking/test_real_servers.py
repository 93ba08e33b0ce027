"""Real servers: behind passwords, tokens and TLS, and PostgreSQL."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from mlflow import MlflowClient

from study.errors import StudyError
from study.tracking.health import check_store
from study.tracking.reader import read_table
from study.tracking.ui_server import run_mlflow_server
from study.utils.tracking_uri import with_driver
from tests.support.tracked_study import OpenTracker, TrackedStudy

SECRET = "s3cret-word-of-ada"


@pytest.mark.faults
def test_basic_auth_works_and_is_not_shown(
    study_dir: Path,
    empty_store: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
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
    with run_mlflow_server(
        store, artifact_root=study_dir / "artifacts", basic_auth=True
    ) as address:
        unauthenticated = open_tracker(study_dir, address, process=True)
        tracked_study.open_study(unauthenticated)
        tracked_study.log_trial(unauthenticated, tracked_study.make_record("circle", 1))
        _wait(lambda: unauthenticated.get_status().error)
        assert not unauthenticated.flush(0.0)
        assert (
            "401" in unauthenticated.get_status().error
            or "credentials" in unauthenticated.get_status().error
        )
        unauthenticated.close(0.0)
        with pytest.raises(StudyError):
            read_table(address, "groceries")
        # User and password from MLflow's own variables.
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
        known = open_tracker(study_dir, address, process=True)
        tracked_study.log_trial(known, tracked_study.make_record("circle", 2))
        assert known.close(60.0)
        assert len(read_table(address, "groceries").trials) == 2
        # Or inside the address.
        monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
        monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
        inside = address.replace("://", f"://ada:{SECRET}@")
        assert len(read_table(inside, "groceries").trials) == 2
        tracker = open_tracker(study_dir, inside, process=True)
        tracked_study.open_study(tracker)
        tracker.start_trial(
            tracked_study.make_record("circle", 3, tags={"store": inside}, fixed={"at": inside})
        )
        tracker.end_trial("circle-0003", state="failed", error=f"no {inside}", timestamp=1.8e9)
        tracker.set_note(f"kept at {inside}")
        assert tracker.close(60.0)
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


@pytest.mark.slow
def test_token_and_certificate_are_used(
    guarded: tuple[str, Path],
    tmp_path: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, certificate = guarded
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
    tracker = open_tracker(tmp_path, address, process=True, experiment="guarded")
    tracker.open_study(name="guarded", plan=tracked_study.plan, losses=["circle"], note="")
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert tracker.close(60.0)
    assert read_table(address, "guarded").trials["trial"].tolist() == ["circle-0001"]
    assert check_store(address) == ""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "another-word")
    with pytest.raises(StudyError, match="refuses"):
        check_store(address)
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    with pytest.raises(StudyError, match="refuses"):
        check_store(address)
    with pytest.raises(StudyError, match="tracking store"):
        read_table(address, "guarded")


@pytest.mark.postgres
def test_postgresql_holds_the_same_study(
    postgres: str,
    finished: Path,
    tmp_path: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
) -> None:
    root = tmp_path / "artifacts"
    tracker = open_tracker(tmp_path, postgres, process=True, artifact_root=root)
    tracked_study.log_study(tracker)
    assert tracker.close(120.0)
    there = read_table(postgres, "groceries")
    here = read_table(f"sqlite:///{finished / 'mlflow.db'}", "groceries")
    assert there.trials.to_csv() == here.trials.to_csv()
    assert there.curves.to_csv() == here.curves.to_csv()
    assert there.baseline == here.baseline
    again = open_tracker(tmp_path, postgres, artifact_root=root)
    tracked_study.log_study(again)
    assert again.flush(120.0)
    assert read_table(postgres, "groceries").curves.to_csv() == here.curves.to_csv()
    with _read_only(postgres):  # as during a failover
        tracked_study.log_trial(again, tracked_study.make_record("circle", 20))
        _wait(lambda: "read-only" in again.get_status().error)
    assert again.close(60.0)
    assert again.get_status().refused == 0
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
