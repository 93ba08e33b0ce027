"""The shipper: sends what the spool holds, however often the server restarts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from study.tracking.reader import read_table
from study.tracking.shipper import ControlPipe, ShipperConfig, ship_records
from study.tracking.spool import SpoolWriter, has_unshipped_records, read_status
from study.tracking.ui_server import find_free_port, run_mlflow_server
from tests.support.tracked_study import Doubles, OpenTracker, TrackedStudy


def test_the_control_pipe_reads_settings_requests_and_its_end() -> None:
    read, write = os.pipe()
    pipe = ControlPipe(read)
    os.write(write, b'{"uri": "x"}\n')
    assert pipe.read_first_line() == '{"uri": "x"}\n'
    assert not pipe.wait_for_message(0.0)
    os.write(write, b"!")
    assert pipe.wait_for_message(5.0)
    assert not pipe.closed
    os.close(write)
    assert pipe.wait_for_message(5.0)
    assert pipe.closed
    os.close(read)


def test_a_driver_that_ends_before_it_writes_settings_is_an_error() -> None:
    read, write = os.pipe()
    os.write(write, b'{"uri"')
    os.close(write)
    with pytest.raises(EOFError, match="settings"):
        ControlPipe(read).read_first_line()
    os.close(read)


def test_a_closed_pipe_ends_a_shipper_whose_server_is_down_and_keeps_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    spool = SpoolWriter(tmp_path)
    spool.append({"op": "note", "at": 1.0, "text": "x"})
    uri = f"http://ada:s3cret@127.0.0.1:{find_free_port()}"
    read, write = os.pipe()
    os.close(write)
    pipe = ControlPipe(read)
    assert pipe.wait_for_message(5.0)
    ship_records(ShipperConfig(uri, str(tmp_path), "groceries", None), pipe)
    os.close(read)
    status = read_status(tmp_path)
    assert "ConnectionError" in status.error or "MlflowException" in status.error
    assert "s3cret" not in status.error
    assert "\n" not in status.error
    assert has_unshipped_records(tmp_path)
    spool.close()


def _server_of(port: int) -> psutil.Process:
    """The leader of the process group that listens on the port."""
    listening = [
        entry.pid
        for entry in psutil.net_connections("tcp")
        if entry.status == psutil.CONN_LISTEN and entry.laddr.port == port and entry.pid
    ]
    return psutil.Process(os.getpgid(listening[0]))


@pytest.mark.faults
def test_a_server_killed_and_restarted_in_the_middle(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy, doubles: Doubles
) -> None:
    port, store = find_free_port(), f"sqlite:///{study_dir / 'mlflow.db'}"
    root = study_dir / "artifacts"
    # The study begins while no server is up.
    tracker = open_tracker(study_dir, f"http://127.0.0.1:{port}", process=True, patience=0.5)
    tracked_study.open_study(tracker)
    for number in range(5):
        tracked_study.log_trial(tracker, tracked_study.make_record("circle", number))
    with run_mlflow_server(store, port=port, artifact_root=root):
        for number in range(5, 15):
            tracked_study.log_trial(tracker, tracked_study.make_record("circle", number))
            time.sleep(0.1)
        _wait(lambda: _count(study_dir) > 3)
        leader = _server_of(port)
        family = [leader, *leader.children(recursive=True)]
        os.killpg(leader.pid, signal.SIGKILL)
        for number in range(15, 25):
            tracked_study.log_trial(tracker, tracked_study.make_record("circle", number))
            time.sleep(0.02)
        _wait(lambda: tracker.get_status().error)
        assert not tracker.flush(0.0)
    psutil.wait_procs(family, timeout=10)
    with run_mlflow_server(store, port=port, artifact_root=root) as address:
        family = psutil.Process(_server_of(port).pid).children(recursive=True)
        tracker.end_study(state="FINISHED")
        assert tracker.flush(60.0)
        assert tracker.get_status().error == ""
        table = read_table(address, "groceries")
    assert not [process for process in family if process.is_running()]
    assert table.trials["state"].tolist() == ["finished"] * 25
    assert len(table.curves) == 75
    assert tracker.get_status().refused == 0
    assert doubles(study_dir / "mlflow.db") == []


def _wait(condition: Any) -> None:
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _count(folder: Path) -> int:
    import sqlite3

    with sqlite3.connect(folder / "mlflow.db") as connection:
        return int(connection.execute("SELECT COUNT(*) FROM runs").fetchone()[0])
