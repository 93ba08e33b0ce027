"""Test of a real cluster of three hosts, created with `ray up` and used from outside.

The hosts are Linux namespaces (see `tests/support/namespace_hosts.py`). While a study runs, one
host is disconnected, another is killed, and the MLflow server is killed; the study must be
complete.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from study.cluster.constants import MLFLOW_PORT
from tests.support.namespace_hosts import (
    HOME_DIRECTORY,
    SHARED_DIRECTORY,
    Host,
    find_missing_requirement,
    start_hosts,
)
from tests.support.running_studies import write_features
from tests.support.unauthenticated_client import OPEN, REQUIRES_TOKEN, probe_ports

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.xdist_group("hosts")]
ROOT = Path(__file__).resolve().parents[2]
TRIALS_PER_LOSS = 6
EPOCHS = 40
TRIAL_PROCESS = "ray::ResourceTrainable"  # between two epochs too


@dataclass
class Laptop:
    """Machine outside the cluster, with its folder and the commands that it runs."""

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

    def start_command(self, *command: str) -> subprocess.Popen[str]:
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

    def run_command(self, *command: str, timeout: float = 480) -> str:
        """Run a command, which must succeed, and return its output."""
        started = time.monotonic()
        process = self.start_command(*command)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        print(f"{time.monotonic() - started:6.1f} s {' '.join(command[-4:])}")
        assert process.returncode == 0, f"{command}: {output[-4000:]}"
        return output

    def run_study_command(self, *arguments: str) -> str:
        """Run `study ARGUMENTS`, which must succeed, and return its output."""
        return self.run_command(sys.executable, "-m", "study", *arguments)


@pytest.fixture(scope="module")
def laptop() -> Iterator[Laptop]:
    """Start the three hosts of the cluster and return the machine outside of it."""
    reason = find_missing_requirement()
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must be able to run the cluster test, but it {reason}")
        pytest.skip(reason)
    # Paths of sockets in pytest's temporary folder would be too long.
    folder = Path("/tmp", f"dml-{os.getpid()}")
    folder.mkdir()
    try:
        with start_hosts(folder, ["head", "one", "two"]) as (machines, key):
            machine = Laptop(folder / "laptop", machines, key)
            (machine.folder / "tmp").mkdir(parents=True)
            try:
                yield machine
            finally:
                for process in machine.started:
                    process.kill()
    finally:
        shutil.rmtree(folder)


def write_cluster_file(laptop: Laptop) -> None:
    """Create the file with `study new`, then edit it for small hosts and short health checks."""
    named = [part for host in laptop.hosts for part in ("--host", host.address)]
    where = ["--user", "root", "--key", str(laptop.key), "--shared", SHARED_DIRECTORY]
    laptop.run_study_command("new", "own.yaml", "--cluster", "onprem", *named, *where)
    path = laptop.folder / "own.yaml"
    text = path.read_text()
    own = {
        "OMP_NUM_THREADS": "1",
        "RAY_health_check_initial_delay_ms": "2000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "4000",
        "RAY_health_check_failure_threshold": "3",
    }
    lines = "".join(f"    'export {key}={value}'\n" for key, value in own.items())
    token_line = "    'export RAY_AUTH_MODE=token'\n"
    assert token_line in text
    path.write_text(text.replace(token_line, token_line + lines))


def write_study_file(laptop: Laptop) -> None:
    write_features(laptop.folder, classes=96, images=12)
    shutil.copy(laptop.folder / "features.npz", laptop.folder.parent / "shared")
    content = {
        "name": "far",
        "data": {"name": "arrays", "path": f"{SHARED_DIRECTORY}/features.npz"},
        "losses": ["proxy_anchor", "triplet"],
        "training": {"epochs": EPOCHS, "batch_size": 32, "embedding_dim": 16},
        "search": {"trials": TRIALS_PER_LOSS, "repeats": 1, "stop_early": False},
        "resources": {"cpus_per_trial": os.cpu_count()},  # one trial on each host
    }
    (laptop.folder / "far.yaml").write_text(yaml.safe_dump(content))


def wait_until(condition: Callable[[], object], *, seconds: float, what: str) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + seconds, f"waited {seconds:g} s, but not yet: {what}"
        time.sleep(0.2)
    print(f"{time.monotonic() - started:6.1f} s until {what}")


def check_no_processes(host: Host, *, seconds: float) -> None:
    started = time.monotonic()
    while left := host.list_processes():
        assert time.monotonic() < started + seconds, f"{host.name} still runs {left}"
        time.sleep(0.2)
    print(f"{time.monotonic() - started:6.1f} s until no process runs on {host.name}")


def check_access_requires_token(laptop: Laptop) -> None:
    """Check that Ray's ports require a token and that MLflow listens only on loopback."""
    responses = probe_ports(laptop.head)
    print("\nresponses of the head's ports to an unauthenticated client:")
    for port, response in responses.items():
        print(f"{port:6} {response}")
    assert MLFLOW_PORT not in responses
    assert not [response for response in responses.values() if response.startswith(OPEN)]
    assert responses[6379] == REQUIRES_TOKEN
    n_protected = sum(response == REQUIRES_TOKEN for response in responses.values())
    assert n_protected >= 3, "Ray's head, node and workers"
    with pytest.raises(OSError):
        socket.create_connection((laptop.head.address, MLFLOW_PORT), timeout=5)
    wrong_token = {**laptop.environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32}
    command = ["ray", "status", "--address", f"{laptop.head.address}:6379"]
    done = subprocess.run(command, env=wrong_token, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "uthenticat" in done.stdout + done.stderr


LIST_VERSIONS_SCRIPT = """
import json, pathlib, study
from importlib.metadata import PackageNotFoundError, version
pins = pathlib.Path("~/dml-study/constraints.txt").expanduser().read_text().split()
others, found = {}, 0
for name, wanted in (pin.split("==") for pin in pins if "==" in pin):
    try:
        found += 1
        if version(name).split("+")[0] != wanted:  # 2.13.0+cpu is 2.13.0, of another index
            others[name] = version(name)
    except PackageNotFoundError:  # of another platform, or for development
        found -= 1
print("INSTALLED", json.dumps([study.__file__, found, others]))
"""


def check_installed_versions(laptop: Laptop) -> None:
    """Check that the set-up commands installed the project and that packages have pinned versions.

    pip has no index here, so the installed versions must satisfy the pins.
    """
    output = laptop.run_command(
        "ray", "exec", "own.yaml", f"python -c {shlex.quote(LIST_VERSIONS_SCRIPT)}"
    )
    (line,) = [line for line in output.splitlines() if line.startswith("INSTALLED ")]
    file, found, others = json.loads(line.removeprefix("INSTALLED "))
    assert file.startswith(f"{HOME_DIRECTORY}/dml-study/.venv/")
    assert file.endswith("/site-packages/study/__init__.py")
    assert found > 50
    assert others == {}


@contextlib.contextmanager
def run_ui(laptop: Laptop, *arguments: str) -> Iterator[str]:
    """Run `study ui` and yield the address that it prints; SIGTERM must close its tunnel.

    It ignores SIGINT, as in the background of a shell script.
    """
    without_sigint = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    process = laptop.start_command(*without_sigint, sys.executable, "-m", "study", "ui", *arguments)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:(\d+)\S*", line):
            break
    else:
        pytest.fail(f"no address: {lines}")
    (tunnel,) = psutil.Process(process.pid).children()
    assert tunnel.name() == "ssh"
    yield found[0]
    process.terminate()
    assert process.communicate(timeout=30)[0].strip() == "stopped"
    assert process.returncode == 0
    assert not tunnel.is_running()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=5)


def fetch_text(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as response:
        return str(response.read().decode())


def is_mlflow_running(address: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return "<title>MLflow</title>" in fetch_text(address)
    return False


def check_mlflow_restarts(laptop: Laptop) -> None:
    """Kill the MLflow server and its supervisor; the same tunnel must reach a new server."""
    with run_ui(laptop, "far", "--cluster", "own.yaml") as address:
        server, _, page = address.partition("/#")
        assert "<title>MLflow</title>" in fetch_text(server)
        experiment = page.removeprefix("/experiments/").split("/")[0]
        path = f"{server}/api/2.0/mlflow/experiments/get?experiment_id={experiment}"
        assert json.loads(fetch_text(path))["experiment"]["name"] == "far"
        supervisors = laptop.head.find_processes("study.cluster.supervisor keep head")
        assert len(supervisors) == 1
        before = laptop.head.find_processes("uvicorn")
        assert before
        for process in supervisors + before:
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: is_mlflow_running(server), seconds=120, what="MLflow is running again")
        assert len(laptop.head.find_processes("study.cluster.supervisor keep head")) == 1
        assert not set(before) & set(laptop.head.find_processes("uvicorn"))
        assert json.loads(fetch_text(path))["experiment"]["name"] == "far"


def count_checkpoints(laptop: Laptop) -> int:
    return len(list((laptop.folder.parent / "shared").glob("far-*/*.pt")))


def test_a_study_on_a_cluster_survives_lost_hosts_and_a_closed_laptop(laptop: Laptop) -> None:
    write_cluster_file(laptop)
    write_study_file(laptop)
    laptop.run_command("ray", "up", "-y", "--disable-usage-stats", "own.yaml")

    _, one, two = laptop.hosts
    wait_until(
        lambda: one.find_processes("raylet") and two.find_processes("raylet"),
        seconds=120,
        what="3 nodes",
    )
    first = laptop.start_command(
        sys.executable, "-m", "study", "run", "far.yaml", "--cluster", "own.yaml"
    )
    wait_until(
        lambda: (
            (one.find_processes(TRIAL_PROCESS) and two.find_processes(TRIAL_PROCESS))
            or first.poll() is not None
        ),
        seconds=180,
        what="both workers train",
    )
    assert first.poll() is None, first.communicate()[0]
    wait_until(lambda: count_checkpoints(laptop), seconds=60, what="an epoch has ended")
    one.disconnect()
    two.kill()
    first.kill()  # the laptop closes
    first.communicate()

    again = laptop.start_command(
        sys.executable, "-m", "study", "run", "far.yaml", "--cluster", "own.yaml"
    )
    check_mlflow_restarts(laptop)
    followed, _ = again.communicate(timeout=300)
    assert again.returncode == 0, followed
    assert "far is running; following it" in followed
    assert f"{2 * TRIALS_PER_LOSS}/{2 * TRIALS_PER_LOSS} trials" in followed
    status = yaml.safe_load(
        laptop.run_study_command("status", "far", "--cluster", "own.yaml", "--json")
    )
    assert status["state"] == "finished"
    for loss in status["losses"]:
        assert loss["ended"] == loss["planned"] == TRIALS_PER_LOSS
        assert loss["failed"] == 0

    laptop.run_study_command("report", "far", "--cluster", "own.yaml", "--out", "report")
    assert (laptop.folder / "report" / "index.html").stat().st_size > 50_000
    trials = pd.read_csv(laptop.folder / "report" / "tables" / "trials.csv")
    assert len(trials) == 2 * TRIALS_PER_LOSS
    assert set(trials["state"]) == {"finished"}
    assert set(trials["epochs"]) == {EPOCHS}
    assert set(trials["host"]) <= {"head", "one", "two"}
    check_access_requires_token(laptop)
    check_installed_versions(laptop)

    one.reconnect()
    laptop.run_command("ray", "down", "-y", "own.yaml")
    for host in (laptop.head, one):
        check_no_processes(host, seconds=60)
