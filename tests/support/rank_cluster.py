"""Studies whose trials have several ranks, on a local cluster of two nodes with logical GPUs.

`python rank_cluster.py FOLDER` runs the studies and prints the results as JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from study.config.loader import load_config
from study.config.plan import load_plan, save_plan
from study.config.planner import build_plan
from study.directory import StudyDirectory
from study.runner.run import RunOptions, run
from tests.support.running_studies import count_ended_trials, launch_command, write_study

CLUSTER_RESOURCES = {"CPU": 4.0, "GPU": 4.0}


def list_actors(name: str) -> list[dict[str, Any]]:
    """Return the actors that are not dead and whose class name contains `name`."""
    from ray._private.state import actors

    states = actors().values()
    return [a for a in states if a["State"] != "DEAD" and name in a["ActorClassName"]]


def find_rank_processes() -> list[psutil.Process]:
    """Return the processes that are ranks of this cluster."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any("Rank" in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def list_held_resources() -> dict[str, Any]:
    """Return the actors, placement groups, processes and resources that are still in use."""
    table = placement_group_table().values()
    free = ray.available_resources()
    return {
        "actors": len(list_actors("")),
        "groups": sum(group["state"] != "REMOVED" for group in table),
        "processes": len(find_rank_processes()),
        "missing": {
            k: v - free.get(k, 0.0) for k, v in CLUSTER_RESOURCES.items() if free.get(k, 0.0) != v
        },
    }


def wait_for_release() -> dict[str, Any]:
    """Wait up to a minute until nothing is in use, because Ray frees resources asynchronously."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        last = list_held_resources()
        if not any(last.values()):
            break
        time.sleep(0.2)
    return last


def write_named_study(folder: Path, name: str, **changes: Any) -> tuple[StudyDirectory, Path]:
    """Write a study file; return the directory that the study will have, and the file."""
    (folder / name).mkdir()
    path = write_study(folder / name, **{"name": name, **changes})
    return StudyDirectory(folder / "studies" / name), path


def run_study(study_dir: StudyDirectory, path: Path) -> bool:
    """Run a study in this process and return whether it finished."""
    plan = build_plan(load_config(path))
    study_dir.path.mkdir(parents=True, exist_ok=True)
    save_plan(plan, study_dir.path)
    return run(study_dir, load_plan(study_dir.path), options=RunOptions(report=False)).is_finished


def run_when(condition: Callable[[], Any], action: Callable[[], None]) -> None:
    """Call an action in a thread as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.02)
        action()

    threading.Thread(target=wait, daemon=True).start()


def monitor_ranks(seen: dict[str, Any]) -> None:
    """Record the largest number of simultaneous ranks and nodes until Ray shuts down."""

    def poll() -> None:
        while ray.is_initialized():
            ranks = [a for a in list_actors("Rank") if a["State"] == "ALIVE"]
            seen["ranks"] = max(seen["ranks"], len(ranks))
            seen["nodes"] = max(seen["nodes"], len({a["Address"]["NodeID"] for a in ranks}))
            seen["pids"] |= {a["Pid"] for a in ranks}
            time.sleep(0.1)

    threading.Thread(target=poll, daemon=True).start()


def run_with_failures(folder: Path, seen: dict[str, Any]) -> dict[str, Any]:
    """Run a study with failing points, pruned trials and a rank that is killed."""
    study_dir, path = write_named_study(
        folder,
        "failures",
        losses={"proxy_anchor": {"search": {"embedding_dim": {"choices": [8, 2**40]}}}},
        # Seconds per trial: one that takes less can end before the ranks of the next have started.
        training={"epochs": 80, "batch_size": 32, "embedding_dim": 8},
        search={
            "trials": 14,
            "sobol_share": 0.3,
            "repeats": 1,
            "stop_early": {"grace_epochs": 1, "reduction": 2},
        },
        resources={
            "ranks_per_trial": 2,
            "gpus_per_trial": 2,
            "cpus_per_trial": 2,
            "shard_proxies": True,
        },
    )
    killed: list[int] = []

    def kill() -> None:
        process = find_rank_processes()[0]
        killed.append(process.pid)
        process.kill()

    run_when(lambda: count_ended_trials(study_dir) >= 2 and find_rank_processes(), kill)
    finished = run_study(study_dir, path)
    return {
        "finished": finished,
        "killed": len(killed),
        "ranks": seen["ranks"],
        "rank_processes": len(seen["pids"]),
        "held": wait_for_release(),
    }


def run_on_two_nodes(folder: Path, seen: dict[str, Any]) -> dict[str, Any]:
    """Run a study in which every trial spans both nodes."""
    seen.update(ranks=0, nodes=0)
    study_dir, path = write_named_study(
        folder,
        "two_nodes",
        losses=["triplet"],
        training={"epochs": 2, "batch_size": 31, "embedding_dim": 8, "images_per_class": 0},
        search={"trials": 2, "repeats": 1},
        resources={
            "ranks_per_trial": 4,
            "nodes_per_trial": 2,
            "gpus_per_trial": 4,
            "cpus_per_trial": 2,
        },
    )
    finished = run_study(study_dir, path)
    return {
        "finished": finished,
        "ranks": seen["ranks"],
        "nodes": seen["nodes"],
        "held": wait_for_release(),
    }


def run_with_shared_gpu(folder: Path) -> dict[str, Any]:
    """Run four trials at once, each with a quarter of a GPU."""
    study_dir, path = write_named_study(
        folder,
        "quarters",
        losses=["triplet"],
        training={"epochs": 12, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 8, "repeats": 1, "stop_early": False},
        resources={"gpus_per_trial": 0.25, "cpus_per_trial": 1},
    )
    seen: list[tuple[int, float]] = []

    def poll() -> None:
        while ray.is_initialized() and not (study_dir.path / "done").exists():
            trials = [a for a in list_actors("Trainable") if a["State"] == "ALIVE"]
            seen.append(
                (len(trials), CLUSTER_RESOURCES["GPU"] - ray.available_resources().get("GPU", 0.0))
            )
            time.sleep(0.1)

    monitor = threading.Thread(target=poll, daemon=True)
    monitor.start()
    finished = run_study(study_dir, path)
    (study_dir.path / "done").touch()
    monitor.join(10)
    trials, gpus = max(seen)
    return {"finished": finished, "trials": trials, "gpus": gpus, "held": wait_for_release()}


def kill_driver(folder: Path, address: str) -> dict[str, Any]:
    """Kill the driver process of a study while its ranks train."""
    study_dir, path = write_named_study(
        folder,
        "killed_driver",
        training={"epochs": 500, "batch_size": 32, "embedding_dim": 8},
        resources={"ranks_per_trial": 2, "gpus_per_trial": 2, "cpus_per_trial": 2},
    )
    process = launch_command(folder / "studies", "run", str(path), "--address", address)
    deadline = time.monotonic() + 240
    while not list(study_dir.checkpoints_dir.glob("*.pt")):  # an epoch is done
        if process.poll() is not None or time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(process.communicate()[0])
        time.sleep(0.05)
    before = list_held_resources()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return {"before": before, "held": wait_for_release()}


def run_without_shared_storage(folder: Path, address: str) -> dict[str, Any] | None:
    """Run all trials on a node with its own checkpoint directory; return None without root."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return None
    study_dir, path = write_named_study(
        folder,
        "no_shared_storage",
        losses=["proxy_anchor", "triplet"],
        training={"epochs": 2, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 3, "repeats": 1, "stop_early": False},
        resources={"cpus_per_trial": 8},
    )
    study_dir.checkpoints_dir.mkdir(parents=True)
    options = "--num-cpus=8 --dashboard-agent-listen-port=0 --object-store-memory=80000000 --block"
    ray_program = Path(sys.executable).parent / "ray"
    script = (
        f"mount -t tmpfs none {study_dir.checkpoints_dir} && exec {ray_program} start {options}"
    )
    node = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{script} --address={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    node_dir = Path(f"/proc/{node.pid}/root{study_dir.checkpoints_dir}")
    written: set[str] = set()

    def poll() -> None:
        while node.poll() is None:
            with contextlib.suppress(OSError):
                written.update(entry.name for entry in node_dir.glob("*.pt"))
            time.sleep(0.02)

    threading.Thread(target=poll, daemon=True).start()
    try:
        while len(ray.nodes()) < 3:
            time.sleep(0.1)
        finished = run_study(study_dir, path)
        remaining = [entry.name for entry in node_dir.glob("*.pt")]
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait(20)
    kept = sorted(entry.name for entry in study_dir.checkpoints_dir.iterdir())
    return {
        "finished": finished,
        "n_written": len(written),
        "remaining": remaining,
        "kept": kept,
    }


def run_all(folder: Path) -> dict[str, Any]:
    """Start a cluster and return the results of all studies on it."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "num_gpus": 2, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=2, num_gpus=2)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    seen: dict[str, Any] = {"ranks": 0, "nodes": 0, "pids": set()}
    monitor_ranks(seen)
    try:
        return {
            "failures": run_with_failures(folder, seen),
            "two_nodes": run_on_two_nodes(folder, seen),
            "shared_gpu": run_with_shared_gpu(folder),
            "killed_driver": kill_driver(folder, cluster.address),
            "no_shared_storage": run_without_shared_storage(folder, cluster.address),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


def run_in_process(folder: Path) -> dict[str, Any]:
    """Return the results of `run_all` in a new process, because a process has only one Ray."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(folder)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise AssertionError(done.stdout[-3000:] + done.stderr[-3000:])
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


if __name__ == "__main__":
    print("\n" + json.dumps(run_all(Path(sys.argv[1])), default=str))
