"""A real cluster, made with `ray up` and used from outside as a laptop would.

Three hosts (see hosts.py). One is cut from the network and another killed while a study runs; it
must end complete, as if nothing had happened.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest
import yaml

from study.cluster.places import MLFLOW_PORT
from tests.cluster.hosts import SHARED, Host, hosts, missing
from tests.cluster.strangers import ASKS, OPEN, answers
from tests.study.driven import write_features

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
TRIALS = 6
EPOCHS = 12
TRIAL = "ray::ResourceTrainable.train"


@dataclass
class Laptop:
    """The machine outside: its own folder, the cluster file, and what commands it runs."""

    folder: Path
    hosts: list[Host]
    key: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def environment(self) -> dict[str, str]:
        temporary = str(self.folder / "tmp")
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "DML_STUDY_CACHE": str(self.folder / "cache"),
            "TMPDIR": temporary,
            "RAY_TMPDIR": temporary,
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *command: str, timeout: float = 240) -> str:
        """A command's output; it must succeed."""
        process = self.start(*command)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        assert process.returncode == 0, f"{command}: {output[-4000:]}"
        return output

    def study(self, *arguments: str) -> str:
        return self.run(sys.executable, "-m", "study", *arguments)


@pytest.fixture(scope="module")
def laptop() -> Iterator[Laptop]:
    """Three hosts that run `ray up`'s cluster; the fixture's end checks that nothing is left."""
    reason = missing()
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must be able to run the cluster test, but it {reason}")
        pytest.skip(reason)
    # Not pytest's temporary folder: sockets below it would have names that are too long.
    folder = Path("/tmp", f"dml-{os.getpid()}")
    folder.mkdir()
    try:
        with hosts(folder, ["head", "one", "two"]) as (made, key):
            machine = Laptop(folder / "laptop", made, key)
            (machine.folder / "tmp").mkdir(parents=True)
            try:
                yield machine
            finally:
                for process in machine.started:
                    process.kill()
    finally:
        shutil.rmtree(folder)


def write_cluster_file(laptop: Laptop) -> None:
    """As a user would: with `study new`, then edited (small hosts, an impatient head)."""
    named = [part for host in laptop.hosts for part in ("--host", host.address)]
    where = ["--user", "root", "--key", str(laptop.key), "--shared", SHARED]
    environment = str(Path(sys.executable).parents[1])
    laptop.study("new", "own.yaml", "--cluster", "onprem", *named, *where, "--venv", environment)
    path = laptop.folder / "own.yaml"
    text = path.read_text()
    own = {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_health_check_initial_delay_ms": "2000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "4000",
        "RAY_health_check_failure_threshold": "3",
    }
    lines = "".join(f"    'export {key}={value}'\n" for key, value in own.items())
    mark = "    'export RAY_AUTH_MODE=token'\n"
    assert mark in text
    text = text.replace(mark, mark + lines)
    text = text.replace("ray start --head", "ray start --include-dashboard=false --head")
    path.write_text(text)


def write_study_file(laptop: Laptop) -> None:
    write_features(laptop.folder, classes=96, images=12)
    shutil.copy(laptop.folder / "features.npz", laptop.folder.parent / "shared")
    content = {
        "name": "far",
        "data": {"name": "arrays", "path": f"{SHARED}/features.npz"},
        "losses": ["proxy_anchor", "triplet"],
        "training": {"epochs": EPOCHS, "batch_size": 32, "embedding_dim": 16},
        "search": {"trials": TRIALS, "repeats": 1, "stop_early": False},
        "resources": {"cpus_per_trial": os.cpu_count()},  # one trial on each host
    }
    (laptop.folder / "far.yaml").write_text(yaml.safe_dump(content))


def wait_until(condition: Callable[[], object], *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain until {what}"
        time.sleep(0.2)


def runs(host: Host, name: str) -> bool:
    """Whether a process of this name runs on a host."""
    return any(name in command for command in host.processes())


def nobody_gets_in(laptop: Laptop) -> None:
    """No port of the head serves a stranger: Ray's ask for the token, MLflow is on loopback."""
    found = answers(laptop.head)
    print("\nwhat the head's ports say to a stranger:")
    for port, said in found.items():
        print(f"{port:6} {said}")
    assert MLFLOW_PORT not in found
    assert not [said for said in found.values() if said.startswith(OPEN)]
    assert found[6379] == ASKS
    assert sum(said == ASKS for said in found.values()) >= 3, "Ray's head, node and workers"
    with pytest.raises(OSError):
        socket.create_connection((laptop.head.address, MLFLOW_PORT), timeout=5)
    stranger = {**laptop.environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32}
    command = ["ray", "status", "--address", f"{laptop.head.address}:6379"]
    done = subprocess.run(command, env=stranger, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "uthenticat" in done.stdout + done.stderr


def checkpoints(laptop: Laptop) -> int:
    return len(list((laptop.folder.parent / "shared" / "far").glob("*.pt")))


def test_a_study_on_a_cluster_survives_lost_hosts_and_a_closed_laptop(laptop: Laptop) -> None:
    write_cluster_file(laptop)
    write_study_file(laptop)
    laptop.run("ray", "up", "-y", "--disable-usage-stats", "own.yaml")

    _, one, two = laptop.hosts
    wait_until(lambda: runs(one, "raylet") and runs(two, "raylet"), seconds=120, what="3 nodes")
    first = laptop.start(sys.executable, "-m", "study", "run", "far.yaml", "--cluster", "own.yaml")
    wait_until(
        lambda: (runs(one, TRIAL) and runs(two, TRIAL)) or first.poll() is not None,
        seconds=180,
        what="both workers train",
    )
    assert first.poll() is None, first.communicate()[0]
    wait_until(lambda: checkpoints(laptop), seconds=60, what="an epoch has ended")
    one.cut()
    two.kill()
    first.kill()  # the laptop closes
    first.communicate()

    again = laptop.study("run", "far.yaml", "--cluster", "own.yaml")
    assert "far is running; following it" in again
    assert f"{2 * TRIALS}/{2 * TRIALS} trials" in again
    status = yaml.safe_load(laptop.study("status", "far", "--cluster", "own.yaml", "--json"))
    assert status["state"] == "finished"
    for loss in status["losses"]:
        assert loss["ended"] == loss["planned"] == TRIALS
        assert loss["failed"] == 0

    laptop.study("report", "far", "--cluster", "own.yaml", "--out", "report")
    assert (laptop.folder / "report" / "index.html").stat().st_size > 50_000
    trials = pd.read_csv(laptop.folder / "report" / "tables" / "trials.csv")
    assert len(trials) == 2 * TRIALS
    assert set(trials["state"]) == {"finished"}
    assert set(trials["epochs"]) == {EPOCHS}
    assert set(trials["host"]) <= {"head", "one", "two"}
    nobody_gets_in(laptop)

    one.mend()
    laptop.run("ray", "down", "-y", "own.yaml")
    for host in (laptop.head, one):
        wait_until(
            lambda host=host: not host.processes(),  # type: ignore[misc]
            seconds=60,
            what=f"nothing runs on {host.name}: {host.processes()}",
        )
