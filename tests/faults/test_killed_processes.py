"""Whatever dies, nothing finished is lost and nothing is run or logged twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from study.home import StudyHome
from study.plan import load_plan
from study.tracking.server import free_port, serve
from tests.study.driven import (
    SEARCH,
    check_complete,
    check_resumed,
    check_suggestions,
    continued,
    cut_power,
    ended_trials,
    family,
    freeze_workers,
    launch,
    listener,
    mark_checkpoints,
    recorded,
    wait_for,
    write_study,
)

pytestmark = pytest.mark.ray


def test_power_cut_move_and_resume(tmp_path: Path, data_cache: Path) -> None:
    """Everything dies at once, half a line is left in the journal, and the folder is moved."""
    home = StudyHome(tmp_path / "studies" / "s")
    file = write_study(
        tmp_path,
        training={"epochs": 6, "batch_size": 32, "embedding_dim": 16},
        search={**SEARCH, "sampler": "random"},
    )
    process = launch(tmp_path / "studies", "run", str(file), "--no-report")
    wait_for(home, 4, process)
    freeze_workers(process, home)
    cut_power(process)
    before = recorded(home)
    assert (before["state"] == "running").any()
    marked = mark_checkpoints(home)
    with (home.directory / "optuna.journal").open("ab") as journal:
        journal.write(b'{"op_code": 6, "worker')
    moved = StudyHome(tmp_path / "elsewhere" / "s")
    moved.directory.parent.mkdir()
    shutil.move(home.directory, moved.directory)
    resumed = launch(tmp_path / "elsewhere", "resume", "s", "--no-report")
    output, _ = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, output
    check_resumed(moved, before, marked)


def test_two_runs_of_one_name_at_once_and_a_ray_that_dies(tmp_path: Path, data_cache: Path) -> None:
    """One of two runs goes on, the other says so in one line and changes nothing.

    Then the raylet of the one's own Ray is killed: it must not wait for ever.
    """
    root, home = tmp_path / "studies", StudyHome(tmp_path / "studies" / "s")
    search = {"trials": 5, "repeats": 1}
    training = {"epochs": 40, "batch_size": 32, "embedding_dim": 16}
    file = write_study(tmp_path, losses=["triplet"], training=training, search=search)
    both = [launch(root, "run", str(file), "--no-report") for _ in range(2)]
    loser = first_to_end(both)
    winner = both[1 - both.index(loser)]
    words = loser.stdout.read() if loser.stdout else ""
    assert loser.returncode == 2, words
    assert words.count("\n") == 1, words
    assert "exists" in words or "is being run by process" in words
    assert [path.name for path in root.iterdir()] == ["s"], "no half-made directory is left"
    wait_for(home, 1, winner)
    next(p for p in family(winner) if p.name() == "raylet").kill()
    words, _ = winner.communicate(timeout=30)
    assert winner.returncode == 1, words
    assert "Ray's raylet died" in words
    assert "study resume s" in words
    before = recorded(home)
    resumed = launch(root, "resume", "s", "--no-report")
    words, _ = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, words
    check_resumed(home, before)


def first_to_end(processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for process in processes:
            if process.poll() is not None:
                return process
        time.sleep(0.05)
    raise AssertionError("both run")


def test_workers_and_the_mlflow_server_die_and_come_back(tmp_path: Path, data_cache: Path) -> None:
    store, port = f"sqlite:///{tmp_path}/server.db", free_port()
    artifacts = tmp_path / "server-artifacts"
    file = write_study(
        tmp_path,
        tracking={"uri": f"http://127.0.0.1:{port}"},
        training={"epochs": 40, "batch_size": 32, "embedding_dim": 16},
    )
    home = StudyHome(tmp_path / "studies" / "s")
    with serve(store, port=port, artifact_root=artifacts):
        process = launch(tmp_path / "studies", "run", str(file), "--no-report")
        wait_for(home, 1, process)
        killed = freeze_workers(process, home)  # so that the study cannot end meanwhile
        cut_power(listener(port))
        # A second run, and a resume, while the first is at it: refused, and nothing changes.
        for command in (["run", str(file)], ["resume", "s"]):
            second = launch(tmp_path / "studies", *command)
            words, _ = second.communicate(timeout=60)
            assert second.returncode == 2, words
            assert words.count("\n") == 1, words
    marked = mark_checkpoints(home)
    for worker in killed:
        worker.kill()
    wait_for(home, ended_trials(home) + 2, process)  # goes on without server and old workers
    with serve(store, port=port, artifact_root=artifacts):
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        trials = check_complete(home)
    # A killed worker costs its trial the last epoch, not its life.
    assert set(trials["state"]) <= {"finished", "stopped"}
    assert continued(home) == sorted(marked), "whoever is missing began again"


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
            from study.plan import load_plan, save_plan
            from study.planning import build_plan
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
    home = StudyHome(tmp_path / "studies" / "s")
    trials = check_complete(home)
    assert (trials["state"] != "failed").all()
    check_suggestions(home)


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
        place = Path(home.checkpoint_place(load_plan(home.directory)))
        ended = before[before["state"] == "finished"]["trial"]
        unsaved = [trial for trial in ended if not (place / f"{trial}.pt").exists()]
        resumed = launch(root, "resume", "s", "--no-report")
        output, _ = resumed.communicate(timeout=300)
        assert resumed.returncode == 0, output
        check_resumed(home, before, unsaved=unsaved)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)
