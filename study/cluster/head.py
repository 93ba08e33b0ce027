"""The head of a cluster as seen from a laptop: where it is, and what ssh can do there."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from study.cluster.places import ENVIRONMENT_FILE, MLFLOW_PORT
from study.errors import StudyError
from study.folders import cache_dir

SSH_FAILED = 255
TUNNEL_SECONDS = 120.0


@dataclass(frozen=True)
class Head:
    """How to reach a cluster's head.

    Args:
        cluster: The cluster's name.
        address: The head's.
        user: Who ssh logs in as.
        key: Private key; empty leaves it to ssh.
        proxy: ssh's ProxyCommand, if any.
    """

    cluster: str
    address: str
    user: str
    key: str = ""
    proxy: str = ""

    @property
    def known_hosts(self) -> Path:
        """Host keys of this cluster's head: trusted when first seen, and only the same after."""
        return cache_dir() / "known_hosts" / self.cluster

    def ssh(self, *options: str) -> list[str]:
        """The ssh command up to and with the destination."""
        self.known_hosts.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": "15",
            "ExitOnForwardFailure": "yes",
            "LogLevel": "ERROR",
            "ServerAliveCountMax": "3",
            "ServerAliveInterval": "10",
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": str(self.known_hosts),
        }
        if self.key:
            settings |= {"IdentityFile": self.key, "IdentitiesOnly": "yes"}
        if self.proxy:
            settings["ProxyCommand"] = self.proxy
        flags = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        return ["ssh", *flags, *options, f"{self.user}@{self.address}"]

    def command(self, words: Sequence[str]) -> list[str]:
        """A command that runs on the head, in the environment its cluster file sets."""
        return [*self.ssh(), f". {ENVIRONMENT_FILE} && {shlex.join(words)}"]

    def run(self, words: Sequence[str], *, content: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on the head, to its end.

        Raises:
            StudyError: The head cannot be reached.
        """
        done = subprocess.run(self.command(words), input=content, capture_output=True, text=True)
        if done.returncode == SSH_FAILED:
            raise StudyError(self.explain(done.stderr))
        return done

    def explain(self, message: str) -> str:
        """Why ssh failed, and what to do, in one line."""
        where = f"the head of {self.cluster} ({self.user}@{self.address})"
        if "Host key verification failed" in message:
            return (
                f"{where} has another key than before: if it was made anew, remove "
                f"{self.known_hosts}; if not, someone may be in between"
            )
        return f"cannot reach {where}: {' '.join(message.split()) or 'ssh failed'}"

    @contextlib.contextmanager
    def tunnel(self, port: int = 0) -> Iterator[str]:
        """The address, on this machine's loopback, of the head's MLflow server.

        Raises:
            StudyError: No tunnel, or no server at its other end.
        """
        from study.tracking.server import free_port

        port = port or free_port()
        forward = f"127.0.0.1:{port}:127.0.0.1:{MLFLOW_PORT}"
        process = subprocess.Popen(
            self.ssh("-N", "-L", forward),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # ctrl-C is for us: we close it in order
        )
        try:
            address = f"http://127.0.0.1:{port}"
            self._await_server(process, address)
            yield address
        finally:
            process.terminate()
            process.communicate()

    def _await_server(self, process: subprocess.Popen[str], address: str) -> None:
        deadline = time.monotonic() + TUNNEL_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                assert process.stderr is not None
                raise StudyError(self.explain(process.stderr.read()))
            with contextlib.suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(f"{address}/health", timeout=10.0).close()
                return
            time.sleep(0.3)
        raise StudyError(
            f"the MLflow server on the head of {self.cluster} does not answer; its log there is "
            "~/.dml-study/keeper.log"
        )


def find_head(file: Path) -> Head:
    """The head of the cluster that a cluster file describes.

    Raises:
        StudyError: No such file, or the cluster is not up.
    """
    config = _read(file)
    provider, auth = config["provider"], config.get("auth") or {}
    if (config.get("docker") or {}).get("container_name"):
        raise StudyError(f"{file}: clusters with a `docker` section are not supported")
    if provider["type"] == "local":
        address = provider.get("external_head_ip") or provider.get("head_ip")
        if not address:
            raise StudyError(f"{file}: `provider` needs a head_ip")
    else:
        address, auth = _ask_ray(file, config)
    return Head(
        cluster=str(config["cluster_name"]),
        address=str(address),
        user=str(auth.get("ssh_user") or os.environ.get("USER", "root")),
        key=str(Path(auth["ssh_private_key"]).expanduser()) if auth.get("ssh_private_key") else "",
        proxy=str(auth.get("ssh_proxy_command") or ""),
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(
            f"no cluster file {file}; `study new --cluster onprem` writes one"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyError(f"cannot read {file}: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise StudyError(f"{file} is not a cluster file")
    for key in ("cluster_name", "provider"):
        if not config.get(key):
            raise StudyError(f"{file} is not a cluster file: `{key}` is missing")
    return config


def _ask_ray(file: Path, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The head's address and the keys, which a cloud's provider knows; Ray's chatter is dropped."""
    from ray.autoscaler import sdk

    chatter = io.StringIO()
    try:
        with contextlib.redirect_stdout(chatter), contextlib.redirect_stderr(chatter):
            auth = sdk.bootstrap_config(config).get("auth") or {}
            return str(sdk.get_head_node_ip(str(file))), auth
    except SystemExit:
        raise StudyError(f"{file}: {' '.join(chatter.getvalue().split())}") from None
    except Exception as error:
        name = config["cluster_name"]
        reason = " ".join(str(error).split())
        raise StudyError(f"cluster {name} is not up; first: ray up {file} ({reason})") from None
