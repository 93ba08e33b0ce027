"""Studies whose trials have several ranks, on a small cluster of this machine with logical GPUs.

Run as a program, `python rank_cluster.py FOLDER`, it prints what was found as JSON.
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

from study.home import StudyHome
from study.plan import load_plan, save_plan
from study.planning import build_plan
from study.read_file import read_study_file
from study.tuning.run import run
from tests.study.driven import ended_trials, launch, write_study

TOTAL = {"CPU": 4.0, "GPU": 4.0}


def actors(name: str) -> list[dict[str, Any]]:
    """Living actors of a class, as the cluster's head knows them."""
    from ray._private.state import actors as known

    found = known().values()
    return [a for a in found if a["State"] != "DEAD" and name in a["ActorClassName"]]


def rank_processes() -> list[psutil.Process]:
    """Processes that are ranks of this cluster."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any("Rank" in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def held() -> dict[str, Any]:
    """What is still held of the cluster."""
    table = placement_group_table().values()
    free = ray.available_resources()
    return {
        "actors": len(actors("")),
        "groups": sum(group["state"] != "REMOVED" for group in table),
        "processes": len(rank_processes()),
        "missing": {k: v - free.get(k, 0.0) for k, v in TOTAL.items() if free.get(k, 0.0) != v},
    }


def settled() -> dict[str, Any]:
    """What is still held after a while: Ray frees things in the background."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        last = held()
        if not any(last.values()):
            break
        time.sleep(0.2)
    return last


def study(folder: Path, name: str, **changes: Any) -> tuple[StudyHome, Path]:
    """A study of its own in the folder."""
    (folder / name).mkdir()
    path = write_study(folder / name, **{"name": name, **changes})
    return StudyHome(folder / "studies" / name), path


def execute(home: StudyHome, path: Path) -> bool:
    plan = build_plan(read_study_file(path))
    home.directory.mkdir(parents=True, exist_ok=True)
    save_plan(plan, home.directory)
    return run(home, load_plan(home.directory), report=False).finished


def meanwhile(condition: Callable[[], Any], action: Callable[[], None]) -> None:
    """Do something as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.02)
        action()

    threading.Thread(target=wait, daemon=True).start()


def watched(seen: dict[str, Any]) -> None:
    """Remember, for as long as the process lives, how many ranks and nodes were used at once."""

    def watch() -> None:
        while ray.is_initialized():
            ranks = [a for a in actors("Rank") if a["State"] == "ALIVE"]
            seen["ranks"] = max(seen["ranks"], len(ranks))
            seen["nodes"] = max(seen["nodes"], len({a["Address"]["NodeID"] for a in ranks}))
            seen["pids"] |= {a["Pid"] for a in ranks}
            time.sleep(0.1)

    threading.Thread(target=watch, daemon=True).start()


def many_ranks(folder: Path, seen: dict[str, Any]) -> dict[str, Any]:
    """Points that fail, trials that stop early, and one rank that is killed."""
    home, path = study(
        folder,
        "hurt",
        losses={"proxy_anchor": {"search": {"embedding_dim": {"choices": [8, 2**40]}}}},
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
        victim = rank_processes()[0]
        killed.append(victim.pid)
        victim.kill()

    meanwhile(lambda: ended_trials(home) >= 2 and rank_processes(), kill)
    finished = execute(home, path)
    return {
        "finished": finished,
        "killed": len(killed),
        "ranks": seen["ranks"],
        "rank_processes": len(seen["pids"]),
        "held": settled(),
    }


def two_nodes(folder: Path, seen: dict[str, Any]) -> dict[str, Any]:
    """Every trial spans both nodes."""
    seen.update(ranks=0, nodes=0)
    home, path = study(
        folder,
        "wide",
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
    finished = execute(home, path)
    return {
        "finished": finished,
        "ranks": seen["ranks"],
        "nodes": seen["nodes"],
        "held": settled(),
    }


def parts_of_gpus(folder: Path) -> dict[str, Any]:
    """Four trials at once, each with a quarter of a GPU: they share one."""
    home, path = study(
        folder,
        "quarters",
        losses=["triplet"],
        training={"epochs": 12, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 8, "repeats": 1, "stop_early": False},
        resources={"gpus_per_trial": 0.25, "cpus_per_trial": 1},
    )
    seen: list[tuple[int, float]] = []

    def watch() -> None:
        while ray.is_initialized() and not (home.directory / "done").exists():
            trials = [a for a in actors("Trainable") if a["State"] == "ALIVE"]
            seen.append((len(trials), TOTAL["GPU"] - ray.available_resources().get("GPU", 0.0)))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    finished = execute(home, path)
    (home.directory / "done").touch()
    watcher.join(10)
    trials, gpus = max(seen)
    return {"finished": finished, "trials": trials, "gpus": gpus, "held": settled()}


def dead_driver(folder: Path, address: str) -> dict[str, Any]:
    """A driver of its own is killed while its ranks train."""
    home, path = study(
        folder,
        "orphans",
        training={"epochs": 500, "batch_size": 32, "embedding_dim": 8},
        resources={"ranks_per_trial": 2, "gpus_per_trial": 2, "cpus_per_trial": 2},
    )
    process = launch(folder / "studies", "run", str(path), "--address", address)
    deadline = time.monotonic() + 240
    while not list(home.checkpoints.glob("*.pt")):  # an epoch is done
        if process.poll() is not None or time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(process.communicate()[0])
        time.sleep(0.05)
    before = held()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return {"before": before, "held": settled()}


def node_apart(folder: Path, address: str) -> dict[str, Any] | None:
    """All trials run on a node that has a folder of its own where the study's is; needs root."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return None
    home, path = study(
        folder,
        "apart",
        losses=["proxy_anchor", "triplet"],
        training={"epochs": 2, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 3, "repeats": 1, "stop_early": False},
        resources={"cpus_per_trial": 8},
    )
    home.checkpoints.mkdir(parents=True)
    options = "--num-cpus=8 --dashboard-agent-listen-port=0 --object-store-memory=80000000 --block"
    ray_program = Path(sys.executable).parent / "ray"
    script = f"mount -t tmpfs none {home.checkpoints} && exec {ray_program} start {options}"
    node = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{script} --address={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    there = Path(f"/proc/{node.pid}/root{home.checkpoints}")
    most: set[str] = set()

    def watch() -> None:
        while node.poll() is None:
            with contextlib.suppress(OSError):
                most.update(entry.name for entry in there.glob("*.pt"))
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    try:
        while len(ray.nodes()) < 3:
            time.sleep(0.1)
        finished = execute(home, path)
        left = [entry.name for entry in there.glob("*.pt")]
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait(20)
    kept = sorted(entry.name for entry in home.checkpoints.iterdir())
    return {"finished": finished, "there": len(most), "left": left, "kept": kept}


def main(folder: Path) -> dict[str, Any]:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "num_gpus": 2, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=2, num_gpus=2)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    seen: dict[str, Any] = {"ranks": 0, "nodes": 0, "pids": set()}
    watched(seen)
    try:
        return {
            "many_ranks": many_ranks(folder, seen),
            "two_nodes": two_nodes(folder, seen),
            "parts": parts_of_gpus(folder),
            "dead_driver": dead_driver(folder, cluster.address),
            "node_apart": node_apart(folder, cluster.address),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


def in_a_process(folder: Path) -> dict[str, Any]:
    """`main` in a process of its own, since a process has one Ray."""
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
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1])), default=str))
