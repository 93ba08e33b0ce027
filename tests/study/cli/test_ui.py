"""Tests of `study ui`: which store is served, and how serving ends.

`tests/study/tracking/test_real_servers.py` starts real servers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from study.cli.ui import _wait_for_interrupt
from tests.support.command_line import CommandResult, RunCommand, save_study_plan

pytestmark = pytest.mark.split

DATABASE = "postgresql://ada:s3cret@127.0.0.1:1/mlflow"


@pytest.fixture
def served_uris(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stores that `study ui` would serve."""
    uris: list[str] = []

    @contextlib.contextmanager
    def serve(uri: str, **_: Any) -> Iterator[str]:
        uris.append(uri)
        yield "http://127.0.0.1:1"

    monkeypatch.setattr("study.tracking.ui_server.run_mlflow_server", serve)
    monkeypatch.setattr("study.tracking.reader.study_path", lambda _, name: f"/#/{name}")
    monkeypatch.setattr("study.tracking.sqlite_store.repair_artifact_paths", lambda _: 0)
    monkeypatch.setattr("study.cli.ui._wait_for_interrupt", lambda *_: 0)
    monkeypatch.setattr("study.cli.ui.signal.signal", lambda *_: None)  # not pytest's own
    return uris


def test_a_study_in_postgresql_is_served(
    study: RunCommand, served_uris: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_study_plan(DATABASE)
    handlers: dict[int, Any] = {}
    monkeypatch.setattr("study.cli.ui.signal.signal", handlers.__setitem__)
    done = study("ui", "s")
    assert done.code == 0
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed
        with pytest.raises(KeyboardInterrupt):
            handlers[number](number, None)
    assert served_uris == [DATABASE]
    assert "http://127.0.0.1:1/#/s" in done.out
    assert "s3cret" not in done.out + done.err


@pytest.mark.slow
def test_a_server_that_stops_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    threading.Timer(2.5, stop).start()
    address = f"http://127.0.0.1:{server.server_port}"
    began = time.monotonic()
    assert _wait_for_interrupt(address) == 1
    assert time.monotonic() - began > 2.0
    assert f"study: the MLflow server at {address} " in capsys.readouterr().err


def test_without_a_name_the_last_study_is_served_and_the_others_are_listed(
    study: RunCommand, served_uris: list[str], tmp_path: Path
) -> None:
    one, alone = save_study_plan(DATABASE, "one"), save_study_plan(None, "alone")
    save_study_plan(DATABASE, "two")
    (alone / "mlflow.db").write_bytes(b"a store")
    save_study_plan("http://ada:s3cret@127.0.0.1:9", "far")
    save_study_plan(None, "never-run")
    (tmp_path / "studies" / "damaged").mkdir()
    (tmp_path / "studies" / "damaged" / "plan.json").write_text("{")

    def serve_last(directory: Path) -> CommandResult:
        newest = max(p.stat().st_mtime for p in (tmp_path / "studies").glob("*/*")) + 10
        os.utime(directory / "plan.json", (newest, newest))
        return study("ui")

    done = serve_last(one)
    assert done.code == 0
    assert served_uris == [DATABASE]
    assert "one: http://127.0.0.1:1/#/one  (ctrl-C stops)" in done.out
    assert "two: http://127.0.0.1:1/#/two\n" in done.out  # in the same store
    assert "alone: in another store  (study ui alone)" in done.out
    assert "far: in another store  (http://ada:***@127.0.0.1:9)" in done.out
    assert "never-run" not in done.out
    assert "s3cret" not in done.out + done.err
    assert serve_last(alone).code == 0
    assert served_uris[1:] == [f"sqlite:///{alone / 'mlflow.db'}"]
    done = serve_last(tmp_path / "studies" / "far")
    assert "http://ada:***@127.0.0.1:9; open" in done.out
    assert "one: in another store  (study ui one)" in done.out
    assert len(served_uris) == 2


def test_without_any_study_the_folder_is_named(study: RunCommand) -> None:
    done = study("ui")
    assert done.code == 2
    assert "studies" in done.err
