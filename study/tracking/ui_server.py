"""How is MLflow's own UI opened on a study's store?"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from study.errors import StudyError
from study.processes import module
from study.tracking.address import with_driver
from study.tracking.redaction import redact

ANSWER_SECONDS = 5.0
STORE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"


@contextlib.contextmanager
def serve(
    uri: str,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    artifact_root: Path | None = None,
    basic_auth: bool = False,
    wait_seconds: float = 120.0,
) -> Iterator[str]:
    """Run `mlflow server` on a store and give its address; it stops, with all its processes, after.

    Args:
        uri: The store's database (`sqlite:///...` or `postgresql://...`).
        port: 0 takes a free one.
        host: Loopback unless told otherwise.
        artifact_root: Where artifacts of new experiments go, through the server; None leaves
            MLflow's default. Those of existing experiments stay where they are.
        basic_auth: Ask for user and password (MLflow's basic-auth app; its settings are MLflow's).
        wait_seconds: How long a slow machine may take to start it.

    Raises:
        StudyError: The server did not start, or the port is taken.
    """
    port = port or free_port(host)
    if _taken(host, port):
        raise StudyError(
            f"The port {port} of {host} is taken: choose another, or 0 for a free one."
        )
    command = [*module("mlflow"), "server", "--host", host, "--port", str(port)]
    # A line for every request would fill the disk in the months a server may run.
    command += ["--workers", "1", "--uvicorn-opts", "--no-access-log"]
    if artifact_root is not None:
        command += ["--artifacts-destination", artifact_root.absolute().as_uri()]
    if basic_auth:
        command += ["--app-name", "basic-auth"]
    address = f"http://{host}:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **_environment(uri)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if not _answers(address, process, wait_seconds):
                log.seek(0)
                last = log.read()[-2000:].decode(errors="replace").strip().splitlines()[-3:]
                raise StudyError(f"The MLflow server did not start: {redact(' | '.join(last))}")
            yield address
        finally:
            _stop(process)


def end_servers(uri: str) -> None:
    """End the servers on a store that were left behind when whoever started them was killed.

    They are known by the store in their environment: another server of this user is left alone.
    """
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if "mlflow" not in " ".join(process.info["cmdline"] or []):
            continue
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            group = os.getpgid(process.pid)
            own = process.environ().get(STORE_VARIABLE) == with_driver(uri)
            if own and group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def _environment(uri: str) -> dict[str, str]:
    return {
        # The store's address may hold a password: not on the command line.
        STORE_VARIABLE: with_driver(uri),
        "MLFLOW_TRACKING_URI": "",
        # Half a gigabyte of workers for evaluating language models, which no study needs.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def says_it_is_well(address: str) -> bool:
    """Whether a server answers right now; not when it takes seconds.

    Raises:
        ConnectionError: Nothing listens there.
    """
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=ANSWER_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # it answers, if only to ask who we are
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionError):
            raise error.reason from None
        return False
    except (OSError, http.client.HTTPException):  # too slow, or broken off in the middle
        return False


def _answers(address: str, process: subprocess.Popen[bytes], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(ConnectionError):
            if says_it_is_well(address):
                return True
        time.sleep(0.1)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server's process group: uvicorn's workers too."""
    for order, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, order)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
