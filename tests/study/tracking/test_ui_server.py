"""The MLflow server on a study's store."""

from __future__ import annotations

import http.server
import socket
import threading
from pathlib import Path

import pytest

from study.errors import StudyError
from study.tracking.ui_server import find_free_port, is_healthy, run_mlflow_server


def test_a_taken_port_is_named(empty_store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        store = f"sqlite:///{empty_store}"
        with (
            pytest.raises(StudyError, match=f"port {port} .*is in use"),
            run_mlflow_server(store, port=port),
        ):
            pass


class _LoginRequired(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_requires_a_login_is_healthy() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _LoginRequired) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert is_healthy(f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


def test_a_server_that_never_answers_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.tracking.ui_server.HEALTH_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not is_healthy(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_port_without_a_server_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError):
        is_healthy(f"http://127.0.0.1:{find_free_port()}")
