"""Whatever dies, nothing finished is lost and nothing is run or logged twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from study.home import StudyHome
from study.tracking.server import free_port, serve
from tests.study.driven import (
    check_complete,
    check_consistent,
    ended_trials,
    launch,
    recorded,
    wait_for,
    workers_of,
    write_study,
)

pytestmark = pytest.mark.ray


def test_power_cut_move_and_resume(tmp_path: Path, data_cache: Path) -> None:
    """Everything dies at once, half a line is left in the journal, and the folder is moved."""
    home = StudyHome(tmp_path / "studies" / "s")
    process = launch(tmp_path / "studies", "run", str(write_study(tmp_path)), "--no-report")
    wait_for(home, 4, process)
    import psutil

    family = psutil.Process(process.pid).children(recursive=True)
    for victim in [*family, psutil.Process(process.pid)]:
        with_suppressed(victim)
    process.wait()
    before = recorded(home)
    with (home.directory / "optuna.journal").open("ab") as journal:
        journal.write(b'{"op_code": 6, "worker')
    moved = StudyHome(tmp_path / "elsewhere" / "s")
    moved.directory.parent.mkdir()
    shutil.move(home.directory, moved.directory)
    resumed = launch(tmp_path / "elsewhere", "resume", "s", "--no-report")
    output, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, output
    after = check_complete(moved)
    done = before[before["state"] != "running"].merge(after, on="trial", suffixes=("", "_after"))
    assert len(done) == (before["state"] != "running").sum()
    assert (done["state"] == done["state_after"]).all()
    assert len(list(moved.checkpoints.iterdir())) <= 2


def with_suppressed(process: object) -> None:
    import contextlib

    import psutil

    assert isinstance(process, psutil.Process)
    with contextlib.suppress(psutil.Error):
        process.kill()


def test_workers_and_the_mlflow_server_die_and_come_back(tmp_path: Path, data_cache: Path) -> None:
    store, port = f"sqlite:///{tmp_path}/server.db", free_port()
    artifacts = tmp_path / "server-artifacts"
    file = write_study(
        tmp_path,
        tracking={"uri": f"http://127.0.0.1:{port}"},
        training={"epochs": 9, "batch_size": 32, "embedding_dim": 16},
    )
    home = StudyHome(tmp_path / "studies" / "s")
    with serve(store, port=port, artifact_root=artifacts):
        process = launch(tmp_path / "studies", "run", str(file), "--no-report")
        wait_for(home, 1, process)
        kill_server(port)
    killed = workers_of(process)
    for worker in killed:
        worker.kill()
    assert killed
    wait_for(home, ended_trials(home) + 2, process)  # goes on without server and old workers
    with serve(store, port=port, artifact_root=artifacts):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        trials = check_complete(home)
    # A killed worker costs its trial the last epoch, not its life.
    assert set(trials["state"]) <= {"finished", "stopped"}


def kill_server(port: int) -> None:
    """SIGKILL to every process of the server that listens on a port."""
    import signal

    import psutil

    listening = [
        entry.pid
        for entry in psutil.net_connections("tcp")
        if entry.status == psutil.CONN_LISTEN and entry.laddr.port == port and entry.pid
    ]
    os.killpg(os.getpgid(listening[0]), signal.SIGKILL)


def test_a_dead_node_is_survived(tmp_path: Path, data_cache: Path) -> None:
    """A raylet of a three-node cluster is killed in the middle of the study."""
    script = tmp_path / "on_cluster.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import logging, sys, threading, time
            from pathlib import Path
            import ray
            from ray.cluster_utils import Cluster
            from study.home import StudyHome
            from study.plan import build_plan, load_plan, save_plan
            from study.read_file import read_study_file
            from study.tuning.run import run
            from tests.study.driven import ended_trials

            head = {{"num_cpus": 0, "include_dashboard": False}}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            plan = build_plan(read_study_file(Path({str(write_study(tmp_path))!r})))
            home = StudyHome(Path({str(tmp_path)!r}) / "studies" / "s")
            home.directory.mkdir(parents=True)
            save_plan(plan, home.directory)

            def hurt():
                while ended_trials(home) < 3:
                    time.sleep(0.05)
                cluster.remove_node(nodes[1], allow_graceful=False)

            threading.Thread(target=hurt, daemon=True).start()
            summary = run(home, load_plan(home.directory), report=False)
            ray.shutdown()
            cluster.shutdown()
            sys.exit(0 if summary.finished else 1)
            """
        )
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    trials = check_complete(StudyHome(tmp_path / "studies" / "s"))
    assert (trials["state"] != "failed").all()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a small file system")
def test_a_full_disk_stops_cleanly_and_goes_on_later(tmp_path: Path, data_cache: Path) -> None:
    root = tmp_path / "small-disk"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(root)], check=True)
    try:
        home = StudyHome(root / "s")
        process = launch(root, "run", str(write_study(tmp_path)), "--no-report")
        wait_for(home, 2, process)
        ballast = root / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
            except OSError:
                pass
        output, _ = process.communicate(timeout=300)
        assert process.returncode in (1, 2), output
        assert "No space left" in output
        assert "Traceback" not in output
        ballast.unlink()
        before = recorded(home)
        resumed = launch(root, "resume", "s", "--no-report")
        output, _ = resumed.communicate(timeout=300)
        assert resumed.returncode == 0, output
        after = check_complete(home)
        assert set(before["trial"]) <= set(after["trial"])
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_a_clock_that_goes_backwards(tmp_path: Path) -> None:
    """Records carry the clock's word, but order and completeness come from steps."""
    from study.jobs import Outcome
    from study.plan import save_plan
    from study.tracking.writer import Tracker
    from study.tuning.run import _open_tracking
    from study.tuning.telling import TrackingListener
    from tests.study.tuning_simulation import drive, make_plan, open_ledger

    plan = make_plan(losses=["triplet"], search={"trials": 3, "repeats": 1})
    home = StudyHome(tmp_path / "s")
    home.directory.mkdir()
    save_plan(plan, home.directory)
    ledger = open_ledger(plan, home.directory)
    clock = iter(range(2_000_000_000, 0, -3600))
    counts = {
        f"{part}_{kind}": 1
        for part in ("train", "validation", "test")
        for kind in ("classes", "items")
    }
    data = {"name": "glyphs", "kind": "images", "fingerprint": "x", **counts}
    with Tracker(
        home.tracking_uri(plan),
        spool=home.spool,
        artifact_root=home.artifact_root(plan),
        experiment=plan.name,
    ) as tracker:
        _open_tracking(tracker, plan, data)
        listener = TrackingListener(tracker, plan, {}, clock=lambda: float(next(clock)))
        while (job := ledger.next_job()) is not None:
            listener.started(job)
            for epoch in range(1, 10):
                listener.epoch(job, epoch, {"map_at_r": epoch / 10})
                ledger.report(job.trial, epoch, epoch / 10)
            outcome = Outcome("finished", 9, 0.9)
            listener.ended(job, outcome)
            ledger.end(job.trial, outcome)
    assert drive(ledger) == []
    trials = check_consistent(home)
    assert trials["score"].tolist() == [0.9, 0.9, 0.9]
