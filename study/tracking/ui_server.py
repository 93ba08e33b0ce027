"""MLflow UI server: runs `mlflow server` on a study's store."""

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
from study.utils.redaction import redact
from study.utils.subprocesses import python_command
from study.utils.tracking_uri import with_driver

HEALTH_TIMEOUT_SECONDS = 5.0
STORE_URI_VARIABLE = "MLFLOW_BACKEND_STORE_URI"


@contextlib.contextmanager
def run_mlflow_server(
    uri: str,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    artifact_root: Path | None = None,
    basic_auth: bool = False,
    wait_seconds: float = 120.0,
) -> Iterator[str]:
    """Run `mlflow server` on a store, yield its address, and stop all its processes afterwards.

    Args:
        uri: The store's database (`sqlite:///...` or `postgresql://...`).
        port: TCP port; 0 selects a free one.
        host: Address to listen on; loopback by default.
        artifact_root: Folder in which the server stores artifacts of new experiments; None for
            MLflow's default. Artifacts of existing experiments stay where they are.
        basic_auth: Require a user and password (MLflow's basic-auth app, configured as usual).
        wait_seconds: Time that the server has to start.

    Raises:
        StudyError: The server did not start, or the port is in use.
    """
    port = port or find_free_port(host)
    if _is_port_taken(host, port):
        raise StudyError(
            f"port {port} of {host} is in use; choose another one, or 0 for any free port"
        )
    command = [*python_command("mlflow"), "server", "--host", host, "--port", str(port)]
    # A log line per request would fill the disk of a server that runs for months.
    command += ["--workers", "1", "--uvicorn-opts", "--no-access-log"]
    if artifact_root is not None:
        command += ["--artifacts-destination", artifact_root.absolute().as_uri()]
    if basic_auth:
        command += ["--app-name", "basic-auth"]
    address = f"http://{host}:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **_server_environment(uri)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if not _wait_until_healthy(address, process, wait_seconds):
                log.seek(0)
                last = log.read()[-2000:].decode(errors="replace").strip().splitlines()[-3:]
                raise StudyError(f"the MLflow server did not start: {redact(' | '.join(last))}")
            yield address
        finally:
            _stop_server(process)


def kill_orphan_servers(uri: str) -> None:
    """Kill servers on a store whose parent process was killed.

    They are recognised by the store's URI in their environment; other servers are left alone.
    """
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if "mlflow" not in " ".join(process.info["cmdline"] or []):
            continue
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            group = os.getpgid(process.pid)
            is_on_store = process.environ().get(STORE_URI_VARIABLE) == with_driver(uri)
            if is_on_store and group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)


def find_free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is not in use."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _is_port_taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def _server_environment(uri: str) -> dict[str, str]:
    return {
        # Not on the command line, because the store's URI may contain a password.
        STORE_URI_VARIABLE: with_driver(uri),
        "MLFLOW_TRACKING_URI": "",
        # These workers evaluate language models and take half a gigabyte.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def is_healthy(address: str) -> bool:
    """Whether a server answers within a few seconds.

    Raises:
        ConnectionError: Nothing listens at the address.
    """
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=HEALTH_TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # it answers, even if it requires authentication
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionError):
            raise error.reason from None
        return False
    except (OSError, http.client.HTTPException):  # too slow, or the connection broke
        return False


def _wait_until_healthy(address: str, process: subprocess.Popen[bytes], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(ConnectionError):
            if is_healthy(address):
                return True
        time.sleep(0.1)
    return False


def _stop_server(process: subprocess.Popen[bytes]) -> None:
    """Stop the server's process group, including uvicorn's workers."""
    for signal_number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
