"""Autoscaling cluster of Ray whose nodes are processes of this machine.

`ray.cluster_utils.AutoscalingCluster` reads a file that Ray's wheel does not contain, and calls
`ray stop --force`, which stops every Ray of the machine. Therefore the same node provider is
configured as an external one, and the processes are found by a variable in their environment.
`python autoscaling_cluster.py FOLDER` runs the studies and prints the results as JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray

from study.config.loader import load_config
from study.config.plan import load_plan, save_plan
from study.config.planner import build_plan
from study.directory import StudyDirectory
from study.runner.autoscaling import RayDemandStore, ResourceDemand
from study.runner.run import RunOptions, run
from study.tracking.ui_server import find_free_port
from tests.support.running_studies import launch_command, write_study

ROOT = Path(__file__).resolve().parents[2]
MARKER_VARIABLE = "DML_STUDY_TEST_CLUSTER"
HEAD_NODE_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
MAX_WORKERS = 3


def make_cluster_config(port: int) -> dict[str, Any]:
    """Return the configuration of a head without trials and up to three nodes of one CPU each."""
    lists = ("initialization", "setup", "head_setup", "worker_setup")
    starts = ("head_start_ray", "worker_start_ray")
    return {
        **{f"{kind}_commands": [] for kind in (*lists, *starts)},
        **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        **{key: {} for key in ("file_mounts", "auth", "docker")},
        "file_mounts_sync_continuously": False,
        "cluster_name": "autoscaled",
        "max_workers": MAX_WORKERS,
        "upscaling_speed": 100,
        "idle_timeout_minutes": 0.05,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": HEAD_NODE_ID,
            "gcs_address": f"127.0.0.1:{port}",
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "small": {
                "resources": {"CPU": 1, "object_store_memory": 80 * 2**20},
                "node_config": {},
                "min_workers": 0,
                "max_workers": MAX_WORKERS,
            },
        },
    }


@contextlib.contextmanager
def run_cluster(folder: Path) -> Iterator[str]:
    """Start a cluster and yield its address; kill all its processes at the end."""
    port = find_free_port()
    file = Path.home() / "ray_bootstrap_config.yaml"  # where `ray up` puts it on a head
    file.write_text(json.dumps(make_cluster_config(port)))
    temporary = get_temporary_folder()
    temporary.mkdir()
    os.environ |= {
        MARKER_VARIABLE: str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_NODE_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    options = {
        "port": port,
        "node-ip-address": "127.0.0.1",
        "num-cpus": 0,
        "object-store-memory": 80 * 2**20,
        "include-dashboard": "false",
        "dashboard-agent-listen-port": 0,
        "ray-client-server-port": find_free_port(),
        "temp-dir": temporary,
        "autoscaling-config": file,
    }
    arguments = [f"--{key}={value}" for key, value in options.items()]
    ray_program = str(Path(sys.executable).parent / "ray")
    try:
        for command in (["get-auth-token", "--generate"], ["start", "--head", *arguments]):
            subprocess.run([ray_program, *command], check=True, stdout=subprocess.DEVNULL)
        yield f"127.0.0.1:{port}"
    finally:
        ray.shutdown()
        kill_marked_processes(str(folder))
        shutil.rmtree(temporary, ignore_errors=True)


def find_marked_processes(marker: str) -> list[psutil.Process]:
    """Return every process of the cluster except this one.

    Some processes lose the marker because Ray overwrites their environment with their title. They
    are children of processes that have it.
    """
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARKER_VARIABLE) == marker:
                found |= {process, *process.children(recursive=True)}
    return list(found)


def kill_marked_processes(marker: str) -> None:
    """Kill every process of the cluster except this one, including those started meanwhile."""
    deadline = time.monotonic() + 20
    while (found := find_marked_processes(marker)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=5)


def read_launch_steps() -> list[int]:
    """Return the number of nodes that the autoscaler started in each step, from its log."""
    logs = get_temporary_folder() / "session_latest" / "logs"
    lines = (logs / "monitor.log").read_text().splitlines()
    steps = [re.search(r"Adding (\d+) node\(s\) of type small", line) for line in lines]
    return [int(step[1]) for step in steps if step]


def get_temporary_folder(pid: int | None = None) -> Path:
    # Below /tmp, because paths of sockets must be short.
    return Path("/tmp", f"dml-{pid or os.getpid()}")


def count_workers() -> int:
    """Return the number of nodes that are alive, without the head."""
    return len([node for node in ray.nodes() if node["Alive"]]) - 1


class WorkerCountMonitor:
    """Thread that records every change of the number of workers with its time, until `stop`."""

    def __init__(self) -> None:
        self.counts: list[tuple[float, int]] = [(0.0, 0)]
        self._started, self._stop = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._record_counts, daemon=True)
        self._thread.start()

    def _record_counts(self) -> None:
        while not self._stop.is_set():
            count = count_workers()
            if count != self.counts[-1][1]:
                self.counts.append((time.monotonic() - self._started, count))
            time.sleep(0.05)

    def stop(self) -> list[tuple[float, int]]:
        self._stop.set()
        self._thread.join(10)
        return self.counts


def run_oversized_study(folder: Path, address: str) -> dict[str, Any]:
    """Run a study whose trials need more CPUs than any node has or can have."""
    (folder / "huge").mkdir()
    path = write_study(folder / "huge", name="huge", resources={"cpus_per_trial": 8})
    process = launch_command(folder / "studies", "run", str(path), "--address", address)
    output, _ = process.communicate(timeout=120)
    is_created = (folder / "studies" / "huge").exists()
    return {"code": process.returncode, "output": output, "is_created": is_created}


def share_demands(address: str) -> dict[str, Any]:
    """Return the demands of the store while another study runs and after it was killed."""
    code = (
        "import sys, time, ray\n"
        "from study.runner.autoscaling import RayDemandStore, ResourceDemand\n"
        "ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "RayDemandStore('other').publish_demand(ResourceDemand({'CPU': 1.0}, 1, 2))\n"
        "print('published', flush=True)\ntime.sleep(100)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, address], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    while "published" not in other.stdout.readline():
        assert other.poll() is None
    demand_store = RayDemandStore("own")
    demand_store.publish_demand(ResourceDemand({"CPU": 1.0}, 1, 1))
    both = [demand.trials for demand in demand_store.list_demands()]
    other.kill()
    other.wait()
    deadline = time.monotonic() + 20
    while len(demand_store.list_demands()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    alone = [demand.trials for demand in demand_store.list_demands()]
    demand_store.publish_demand(None)
    return {"both": sorted(both), "alone": alone, "none": len(demand_store.list_demands())}


def run_autoscaled_study(folder: Path) -> dict[str, Any]:
    """Run a study of nine short trials and record the number of workers."""
    (folder / "autoscaled").mkdir()
    path = write_study(
        folder / "autoscaled",
        name="autoscaled",
        losses=["triplet"],
        training={"epochs": 30, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 9, "repeats": 1, "stop_early": False},
    )
    study_dir = StudyDirectory(folder / "studies" / "autoscaled")
    plan = build_plan(load_config(path))
    study_dir.path.mkdir(parents=True)
    save_plan(plan, study_dir.path)
    monitor = WorkerCountMonitor()
    before = count_workers()
    summary = run(study_dir, load_plan(study_dir.path), options=RunOptions(report=False))
    finished = time.monotonic()
    while count_workers() and time.monotonic() - finished < 60:
        time.sleep(0.1)
    return {
        "before": before,
        "finished": summary.is_finished,
        "failed": sum(p.failed for p in summary.progress),
        "worker_counts": monitor.stop(),
        "launch_steps": read_launch_steps(),
        "after": count_workers(),
        "seconds_to_stop": time.monotonic() - finished,
    }


def run_all(folder: Path) -> dict[str, Any]:
    """Start a cluster and return the results of all studies on it."""
    with run_cluster(folder) as address:
        results = {"oversized": run_oversized_study(folder, address)}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        results["demands"] = share_demands(address)
        results["autoscaled"] = run_autoscaled_study(folder)
        return results


@contextlib.contextmanager
def start_program(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `run_all` in a new process whose home directory is the folder.

    All processes of the cluster are killed at the end, even if the process hangs or is killed.
    """
    environment = {
        **os.environ,
        MARKER_VARIABLE: str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "RAY_AUTH_MODE": "token",
    }
    command = [sys.executable, str(Path(__file__)), str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            kill_marked_processes(str(folder))
            shutil.rmtree(get_temporary_folder(process.pid), ignore_errors=True)


def run_in_process(folder: Path) -> dict[str, Any]:
    """Return the results of `run_all` in a new process."""
    with start_program(folder) as process:
        output, errors = process.communicate(timeout=200)
    if process.returncode:
        raise AssertionError(output[-3000:] + errors[-3000:])
    results: dict[str, Any] = json.loads(output.splitlines()[-1])
    return results


if __name__ == "__main__":
    print("\n" + json.dumps(run_all(Path(sys.argv[1])), default=str))
