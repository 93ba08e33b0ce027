"""A cluster that grows: Ray's own autoscaler, with nodes that are processes of this machine.

`ray.cluster_utils.AutoscalingCluster` would do the same, but it reads a file that Ray's wheel does
not have, and begins and ends with `ray stop --force`, which ends every Ray of the machine. So the
same provider is named as an external one, and the processes are found by a mark in their
environment. Run as a program, `python autoscaled.py FOLDER`, it prints what was found as JSON.
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

from study.home import StudyHome
from study.plan import load_plan, save_plan
from study.planning import build_plan
from study.read_file import read_study_file
from study.tracking.server import free_port
from study.tuning.board import ClusterBoard, Wish
from study.tuning.run import run
from tests.study.driven import launch, write_study

ROOT = Path(__file__).resolve().parents[2]
MARK = "DML_STUDY_TEST_CLUSTER"
HEAD = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
WORKERS = 3


def config(port: int) -> dict[str, Any]:
    """A head that runs no trial, and up to three nodes for one trial each."""
    lists = ("initialization", "setup", "head_setup", "worker_setup")
    starts = ("head_start_ray", "worker_start_ray")
    return {
        **{f"{kind}_commands": [] for kind in (*lists, *starts)},
        **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        **{key: {} for key in ("file_mounts", "auth", "docker")},
        "file_mounts_sync_continuously": False,
        "cluster_name": "grows",
        "max_workers": WORKERS,
        "upscaling_speed": 100,
        "idle_timeout_minutes": 0.05,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": HEAD,
            "gcs_address": f"127.0.0.1:{port}",
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "small": {
                "resources": {"CPU": 1, "object_store_memory": 80 * 2**20},
                "node_config": {},
                "min_workers": 0,
                "max_workers": WORKERS,
            },
        },
    }


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a cluster; all its processes are gone afterwards."""
    port = free_port()
    file = Path.home() / "ray_bootstrap_config.yaml"  # where `ray up` puts it on a head
    file.write_text(json.dumps(config(port)))
    temporary = temporary_folder()
    temporary.mkdir()
    os.environ |= {
        MARK: str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
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
        "ray-client-server-port": free_port(),
        "temp-dir": temporary,
        "autoscaling-config": file,
    }
    words = [f"--{key}={value}" for key, value in options.items()]
    ray_program = str(Path(sys.executable).parent / "ray")
    try:
        for command in (["get-auth-token", "--generate"], ["start", "--head", *words]):
            subprocess.run([ray_program, *command], check=True, stdout=subprocess.DEVNULL)
        yield f"127.0.0.1:{port}"
    finally:
        ray.shutdown()
        end_all(str(folder))
        shutil.rmtree(temporary, ignore_errors=True)


def marked(mark: str) -> list[psutil.Process]:
    """Every process of the cluster but this one.

    Some lose the mark, because Ray writes their title over their environment; they are children of
    others.
    """
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found |= {process, *process.children(recursive=True)}
    return list(found)


def end_all(mark: str) -> None:
    """End every process of the cluster but this one, and what they start meanwhile."""
    deadline = time.monotonic() + 20
    while (found := marked(mark)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=5)


def launched() -> list[int]:
    """How many nodes the autoscaler started in each of its steps, as its log says."""
    logs = temporary_folder() / "session_latest" / "logs"
    lines = (logs / "monitor.log").read_text().splitlines()
    steps = [re.search(r"Adding (\d+) node\(s\) of type small", line) for line in lines]
    return [int(step[1]) for step in steps if step]


def temporary_folder(pid: int | None = None) -> Path:
    return Path("/tmp", f"dml-{pid or os.getpid()}")  # names of sockets may not be long


def workers() -> int:
    """How many nodes live besides the head."""
    return len([node for node in ray.nodes() if node["Alive"]]) - 1


class Watch:
    """How many nodes there were, as time went by, until `stop`."""

    def __init__(self) -> None:
        self.alive: list[tuple[float, int]] = [(0.0, 0)]
        self._started, self._stop = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.is_set():
            count = workers()
            if count != self.alive[-1][1]:
                self.alive.append((time.monotonic() - self._started, count))
            time.sleep(0.05)

    def stop(self) -> list[tuple[float, int]]:
        self._stop.set()
        self._thread.join(10)
        return self.alive


def refused(folder: Path, address: str) -> dict[str, Any]:
    """A study whose trial fits no node there is or may come."""
    (folder / "huge").mkdir()
    path = write_study(folder / "huge", name="huge", resources={"cpus_per_trial": 8})
    process = launch(folder / "studies", "run", str(path), "--address", address)
    output, _ = process.communicate(timeout=120)
    left = (folder / "studies" / "huge").exists()
    return {"code": process.returncode, "output": output, "left": left}


def shared(address: str) -> dict[str, Any]:
    """What the board says while another study lives, and after it was killed."""
    code = (
        "import sys, time, ray; from study.tuning.board import ClusterBoard, Wish\n"
        "ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "ClusterBoard('other').publish(Wish({'CPU': 1.0}, 1, 2))\n"
        "print('published', flush=True)\ntime.sleep(100)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, address], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    while "published" not in other.stdout.readline():
        assert other.poll() is None
    board = ClusterBoard("own")
    board.publish(Wish({"CPU": 1.0}, 1, 1))
    both = [wish.trials for wish in board.wishes()]
    other.kill()
    other.wait()
    deadline = time.monotonic() + 20
    while len(board.wishes()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    alone = [wish.trials for wish in board.wishes()]
    board.publish(None)
    return {"both": sorted(both), "alone": alone, "none": len(board.wishes())}


def grown(folder: Path) -> dict[str, Any]:
    """A study of nine short trials."""
    (folder / "grows").mkdir()
    path = write_study(
        folder / "grows",
        name="grows",
        losses=["triplet"],
        training={"epochs": 30, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 9, "repeats": 1, "stop_early": False},
    )
    home = StudyHome(folder / "studies" / "grows")
    plan = build_plan(read_study_file(path))
    home.directory.mkdir(parents=True)
    save_plan(plan, home.directory)
    watch = Watch()
    before = workers()
    summary = run(home, load_plan(home.directory), report=False)
    finished = time.monotonic()
    while workers() and time.monotonic() - finished < 60:
        time.sleep(0.1)
    return {
        "before": before,
        "finished": summary.finished,
        "failed": sum(p.failed for p in summary.progress),
        "alive": watch.stop(),
        "launched": launched(),
        "after": workers(),
        "seconds_to_go": time.monotonic() - finished,
    }


def main(folder: Path) -> dict[str, Any]:
    with cluster(folder) as address:
        found = {"refused": refused(folder, address)}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        found["shared"] = shared(address)
        found["grown"] = grown(folder)
        return found


@contextlib.contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`main` in a process of its own, whose home is the folder: it is the head's.

    Nothing of the cluster is left afterwards, also if the process hangs or is killed.
    """
    environment = {
        **os.environ,
        MARK: str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "RAY_AUTH_MODE": "token",
    }
    words = [sys.executable, str(Path(__file__)), str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            end_all(str(folder))
            shutil.rmtree(temporary_folder(process.pid), ignore_errors=True)


def in_a_process(folder: Path) -> dict[str, Any]:
    """What `main` finds."""
    with started(folder) as process:
        output, errors = process.communicate(timeout=200)
    if process.returncode:
        raise AssertionError(output[-3000:] + errors[-3000:])
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1])), default=str))
