"""A real cluster, made with `ray up` and used from outside as a laptop would.

Three hosts (see hosts.py). One is cut from the network and another killed while a study runs, and
the MLflow server is killed; the study must end complete, as if nothing had happened.
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

from study.cluster.places import MLFLOW_PORT
from tests.cluster.hosts import HOME, SHARED, Host, hosts, missing
from tests.cluster.strangers import ASKS, OPEN, answers
from tests.study.driven import write_features

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
TRIALS = 6
EPOCHS = 20
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

    def run(self, *command: str, timeout: float = 480) -> str:
        """A command's output; it must succeed."""
        began = time.monotonic()
        process = self.start(*command)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        print(f"{time.monotonic() - began:6.1f} s {' '.join(command[-4:])}")
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
    laptop.study("new", "own.yaml", "--cluster", "onprem", *named, *where)
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
    mark = "    'export RAY_AUTH_MODE=token'\n"
    assert mark in text
    path.write_text(text.replace(mark, mark + lines))


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
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"waited {seconds:g} s in vain until {what}"
        time.sleep(0.2)
    print(f"{time.monotonic() - began:6.1f} s until {what}")


def nothing_is_left(host: Host, *, seconds: float) -> None:
    began = time.monotonic()
    while left := host.processes():
        assert time.monotonic() < began + seconds, f"{host.name} still runs {left}"
        time.sleep(0.2)
    print(f"{time.monotonic() - began:6.1f} s until nothing runs on {host.name}")


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


INSTALLED = """
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


def nodes_have_what_was_shipped(laptop: Laptop) -> None:
    """The set-up commands built and installed the project; all else has the pinned version.

    pip had no index to fetch from, so it had to agree with what it found.
    """
    said = laptop.run("ray", "exec", "own.yaml", f"python -c {shlex.quote(INSTALLED)}")
    (line,) = [line for line in said.splitlines() if line.startswith("INSTALLED ")]
    file, found, others = json.loads(line.removeprefix("INSTALLED "))
    assert file.startswith(f"{HOME}/dml-study/.venv/")
    assert file.endswith("/site-packages/study/__init__.py")
    assert found > 50
    assert others == {}


@contextlib.contextmanager
def ui(laptop: Laptop, *arguments: str) -> Iterator[str]:
    """The address that `study ui` prints; afterwards, told to stop, it leaves no tunnel.

    As a shell starts it in the background of a script: it does not hear ctrl-C.
    """
    deaf = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    process = laptop.start(*deaf, sys.executable, "-m", "study", "ui", *arguments)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if found := re.search(r"http://127\.0\.0\.1:(\d+)\S*", line):
            break
    else:
        pytest.fail(f"no address: {said}")
    (tunnel,) = psutil.Process(process.pid).children()
    assert tunnel.name() == "ssh"
    yield found[0]
    process.terminate()
    assert process.communicate(timeout=30)[0].strip() == "stopped"
    assert process.returncode == 0
    assert not tunnel.is_running()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=5)


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


def answers_again(address: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return "<title>MLflow</title>" in fetch(address)
    return False


def mlflow_comes_back(laptop: Laptop) -> None:
    """The page is there through a tunnel; the server and whoever keeps it are killed; the same
    tunnel leads to a new one.
    """
    with ui(laptop, "far", "--cluster", "own.yaml") as address:
        server, _, page = address.partition("/#")
        assert "<title>MLflow</title>" in fetch(server)
        experiment = page.removeprefix("/experiments/").split("/")[0]
        path = f"{server}/api/2.0/mlflow/experiments/get?experiment_id={experiment}"
        assert json.loads(fetch(path))["experiment"]["name"] == "far"
        keeper = laptop.head.running("study.cluster.services keep head")
        assert len(keeper) == 1
        before = laptop.head.running("uvicorn")
        assert before
        for process in keeper + before:
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: answers_again(server), seconds=120, what="MLflow is back")
        assert len(laptop.head.running("study.cluster.services keep head")) == 1
        assert not set(before) & set(laptop.head.running("uvicorn"))
        assert json.loads(fetch(path))["experiment"]["name"] == "far"


def checkpoints(laptop: Laptop) -> int:
    return len(list((laptop.folder.parent / "shared").glob("far-*/*.pt")))


def test_a_study_on_a_cluster_survives_lost_hosts_and_a_closed_laptop(laptop: Laptop) -> None:
    write_cluster_file(laptop)
    write_study_file(laptop)
    laptop.run("ray", "up", "-y", "--disable-usage-stats", "own.yaml")

    _, one, two = laptop.hosts
    wait_until(lambda: one.running("raylet") and two.running("raylet"), seconds=120, what="3 nodes")
    first = laptop.start(sys.executable, "-m", "study", "run", "far.yaml", "--cluster", "own.yaml")
    wait_until(
        lambda: (one.running(TRIAL) and two.running(TRIAL)) or first.poll() is not None,
        seconds=180,
        what="both workers train",
    )
    assert first.poll() is None, first.communicate()[0]
    wait_until(lambda: checkpoints(laptop), seconds=60, what="an epoch has ended")
    one.cut()
    two.kill()
    first.kill()  # the laptop closes
    first.communicate()

    again = laptop.start(sys.executable, "-m", "study", "run", "far.yaml", "--cluster", "own.yaml")
    mlflow_comes_back(laptop)
    followed, _ = again.communicate(timeout=300)
    assert again.returncode == 0, followed
    assert "far is running; following it" in followed
    assert f"{2 * TRIALS}/{2 * TRIALS} trials" in followed
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
    nodes_have_what_was_shipped(laptop)

    one.mend()
    laptop.run("ray", "down", "-y", "own.yaml")
    for host in (laptop.head, one):
        nothing_is_left(host, seconds=60)
