"""Tests that kill processes: no finished trial is lost, and none is run or logged twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from study.config.plan import load_plan
from study.directory import StudyDirectory
from study.tracking.ui_server import find_free_port, run_mlflow_server
from tests.support.running_studies import (
    SEARCH_SECTION,
    check_complete,
    check_resumed,
    check_suggestions,
    count_ended_trials,
    find_listening_process,
    kill_process_tree,
    launch_command,
    list_continued_trials,
    list_process_tree,
    mark_checkpoints,
    read_journal_rows,
    suspend_workers,
    wait_for_ended_trials,
    write_study,
)

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("processes")]


def test_a_study_resumes_after_a_power_failure_and_a_move(tmp_path: Path, data_cache: Path) -> None:
    """All processes are killed at once, the journal ends in a partial line, the folder is moved."""
    study_dir = StudyDirectory(tmp_path / "studies" / "s")
    file = write_study(
        tmp_path,
        training={"epochs": 6, "batch_size": 32, "embedding_dim": 16},
        search={**SEARCH_SECTION, "sampler": "random"},
    )
    process = launch_command(tmp_path / "studies", "run", str(file), "--no-report")
    wait_for_ended_trials(study_dir, 4, process)
    suspend_workers(process, study_dir)
    kill_process_tree(process)
    before = read_journal_rows(study_dir)
    assert (before["state"] == "running").any()
    marked = mark_checkpoints(study_dir)
    with (study_dir.path / "optuna.journal").open("ab") as journal:
        journal.write(b'{"op_code": 6, "worker')
    moved = StudyDirectory(tmp_path / "elsewhere" / "s")
    moved.path.parent.mkdir()
    shutil.move(study_dir.path, moved.path)
    resumed = launch_command(tmp_path / "elsewhere", "resume", "s", "--no-report")
    output, _ = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, output
    check_resumed(moved, before, marked)


def test_two_runs_of_one_name_and_a_killed_raylet(tmp_path: Path, data_cache: Path) -> None:
    """One of two runs continues; the other exits with a one-line message and changes nothing.

    Then the raylet of the first is killed: the run must not wait forever.
    """
    root, study_dir = tmp_path / "studies", StudyDirectory(tmp_path / "studies" / "s")
    search = {"trials": 5, "repeats": 1}
    training = {"epochs": 40, "batch_size": 32, "embedding_dim": 16}
    file = write_study(tmp_path, losses=["triplet"], training=training, search=search)
    both = [launch_command(root, "run", str(file), "--no-report") for _ in range(2)]
    rejected = wait_for_first_exit(both)
    accepted = both[1 - both.index(rejected)]
    output = rejected.stdout.read() if rejected.stdout else ""
    assert rejected.returncode == 2, output
    assert output.count("\n") == 1, output
    assert "exists" in output or "is being run by process" in output
    assert [path.name for path in root.iterdir()] == ["s"], "no incomplete directory is left"
    wait_for_ended_trials(study_dir, 1, accepted)
    next(p for p in list_process_tree(accepted) if p.name() == "raylet").kill()
    output, _ = accepted.communicate(timeout=30)
    assert accepted.returncode == 1, output
    assert "Ray's raylet died" in output
    assert "study resume s" in output
    before = read_journal_rows(study_dir)
    resumed = launch_command(root, "resume", "s", "--no-report")
    output, _ = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, output
    check_resumed(study_dir, before)


def wait_for_first_exit(processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for process in processes:
            if process.poll() is not None:
                return process
        time.sleep(0.05)
    raise AssertionError("both processes keep running")


def test_workers_and_the_mlflow_server_are_killed_and_restarted(
    tmp_path: Path, data_cache: Path
) -> None:
    store, port = f"sqlite:///{tmp_path}/server.db", find_free_port()
    artifacts = tmp_path / "server-artifacts"
    file = write_study(
        tmp_path,
        tracking={"uri": f"http://127.0.0.1:{port}"},
        training={"epochs": 40, "batch_size": 32, "embedding_dim": 16},
    )
    study_dir = StudyDirectory(tmp_path / "studies" / "s")
    with run_mlflow_server(store, port=port, artifact_root=artifacts):
        process = launch_command(tmp_path / "studies", "run", str(file), "--no-report")
        wait_for_ended_trials(study_dir, 1, process)
        killed = suspend_workers(process, study_dir)  # so that the study cannot finish meanwhile
        kill_process_tree(find_listening_process(port))
        # A second run and a resume are rejected while the first is running.
        for command in (["run", str(file)], ["resume", "s"]):
            second = launch_command(tmp_path / "studies", *command)
            output, _ = second.communicate(timeout=60)
            assert second.returncode == 2, output
            assert output.count("\n") == 1, output
    marked = mark_checkpoints(study_dir)
    for worker in killed:
        worker.kill()
    # The study continues without the server and the old workers.
    wait_for_ended_trials(study_dir, count_ended_trials(study_dir) + 2, process)
    with run_mlflow_server(store, port=port, artifact_root=artifacts):
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        trials = check_complete(study_dir)
    # The trial of a killed worker loses its last epoch and continues.
    assert set(trials["state"]) <= {"finished", "stopped"}
    assert list_continued_trials(study_dir) == sorted(marked), (
        "missing trials started from the beginning"
    )


def test_a_study_finishes_after_a_node_is_lost(tmp_path: Path, data_cache: Path) -> None:
    """A raylet of a three-node cluster is killed in the middle of the study."""
    script = tmp_path / "on_cluster.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import logging, sys, threading, time
            from pathlib import Path
            import ray
            from ray.cluster_utils import Cluster
            from study.directory import StudyDirectory
            from study.config.plan import load_plan, save_plan
            from study.config.planner import build_plan
            from study.config.loader import load_config
            from study.runner.run import RunOptions, run
            from tests.support.running_studies import count_ended_trials

            head = {{"num_cpus": 0, "include_dashboard": False}}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            plan = build_plan(load_config(Path({str(write_study(tmp_path))!r})))
            study_dir = StudyDirectory(Path({str(tmp_path)!r}) / "studies" / "s")
            study_dir.path.mkdir(parents=True)
            save_plan(plan, study_dir.path)

            def remove_node():
                while count_ended_trials(study_dir) < 3:
                    time.sleep(0.05)
                cluster.remove_node(nodes[1], allow_graceful=False)

            threading.Thread(target=remove_node, daemon=True).start()
            summary = run(study_dir, load_plan(study_dir.path), options=RunOptions(report=False))
            ray.shutdown()
            cluster.shutdown()
            sys.exit(0 if summary.is_finished else 1)
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
    study_dir = StudyDirectory(tmp_path / "studies" / "s")
    trials = check_complete(study_dir)
    assert (trials["state"] != "failed").all()
    check_suggestions(study_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_disk_stops_cleanly_and_resumes_later(tmp_path: Path, data_cache: Path) -> None:
    root = tmp_path / "small-disk"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(root)], check=True)
    try:
        study_dir = StudyDirectory(root / "s")
        process = launch_command(root, "run", str(write_study(tmp_path)), "--no-report")
        wait_for_ended_trials(study_dir, 2, process)
        filler = root / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
            except OSError:
                pass
        output, _ = process.communicate(timeout=300)
        assert process.returncode in (1, 2), output
        assert "No space left" in output
        assert "Traceback" not in output
        filler.unlink()
        before = read_journal_rows(study_dir)
        place = Path(study_dir.checkpoint_location(load_plan(study_dir.path)))
        ended = before[before["state"] == "finished"]["trial"]
        unsaved = [trial for trial in ended if not (place / f"{trial}.pt").exists()]
        resumed = launch_command(root, "resume", "s", "--no-report")
        output, _ = resumed.communicate(timeout=300)
        assert resumed.returncode == 0, output
        check_resumed(study_dir, before, unsaved=unsaved)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)
