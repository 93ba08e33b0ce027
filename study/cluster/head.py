"""The head of a cluster as seen from a laptop: where it is, and what ssh can do there."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from study.cluster.names import check_host, check_name, check_user
from study.cluster.places import ENVIRONMENT_FILE, KEEPER_LOG, MLFLOW_PORT
from study.cluster.tunnel import Tunnel
from study.errors import StudyError
from study.folders import cache_dir

SSH_FAILED = 255
TUNNEL_SECONDS = 120.0
PROBE_SECONDS = 3.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORTS = {
    "http": 80,
    "https": 443,
    "postgresql": 5432,
    "postgres": 5432,
    "mysql": 3306,
    "mssql": 1433,
}


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
            StudyError: The head cannot be reached, or `ray up` was never there.
        """
        done = subprocess.run(self.command(words), input=content, capture_output=True, text=True)
        if done.returncode == SSH_FAILED:
            raise StudyError(self.explain(done.stderr))
        if done.returncode and f"{Path(ENVIRONMENT_FILE).name}: No such file" in done.stderr:
            raise StudyError(
                f"cluster {self.cluster} is not up: {self.address} has no {ENVIRONMENT_FILE}, "
                "which `ray up` makes"
            )
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
        """The address, on this machine's loopback, of the head's own MLflow server.

        Raises:
            StudyError: No tunnel, or no server at its other end.
        """
        with self.reach(f"http://127.0.0.1:{MLFLOW_PORT}", port) as address:
            yield address

    @contextlib.contextmanager
    def reach(self, uri: str, port: int = 0) -> Iterator[str]:
        """A tracking store that the head knows as `uri`, as an address of this machine.

        Itself where it answers from here (or is https, whose certificate names its host), else the
        end of a tunnel through the head.

        Raises:
            StudyError: No tunnel, nothing at its other end, or a file on the head.
        """
        from study.tracking.server import free_port

        parts = urlsplit(uri)
        scheme = parts.scheme.split("+")[0]
        if scheme == "sqlite":
            raise StudyError(
                f"this study is kept in a file on the head of {self.cluster}, which has no server: "
                "set `tracking: {uri: ...}` to that of a server that both can reach"
            )
        host, far = parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORTS[scheme]
        if scheme == "https" or (host not in LOOPBACK and _listens(host, far)):
            yield uri
            return
        port = (port if scheme == "http" else 0) or free_port()
        tunnel = Tunnel(
            self.ssh("-N", "-L", f"127.0.0.1:{port}:[{host}]:{far}"),
            f"the head of {self.cluster}",
            lambda: _listens("127.0.0.1", port),
        )
        try:
            self._await(tunnel, port, is_server=scheme == "http")
            tunnel.keep()
            user, at, _ = parts.netloc.rpartition("@")
            yield urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))
        finally:
            tunnel.close()

    def _await(self, tunnel: Tunnel, port: int, *, is_server: bool) -> None:
        """Wait until a tunnel is open and, if it leads to MLflow, until that answers."""
        deadline = time.monotonic() + TUNNEL_SECONDS
        while time.monotonic() < deadline:
            if tunnel.process.poll() is not None:
                raise StudyError(self.explain(tunnel.last_words()))
            if not is_server and _listens("127.0.0.1", port):
                return
            with contextlib.suppress(OSError, http.client.HTTPException):
                if is_server:
                    _ask_health(port)
                    return
            time.sleep(0.3)
        raise StudyError(
            f"the MLflow server of {self.cluster} does not answer; that of the head has its log "
            f"there, in {KEEPER_LOG}"
        )


def _ask_health(port: int) -> None:
    with contextlib.suppress(urllib.error.HTTPError):  # it answers, if only to ask who we are
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10.0).close()


def _listens(host: str, port: int) -> bool:
    """Whether something takes connections there, as far as this machine can tell."""
    try:
        socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def find_head(file: Path) -> Head:
    """The head of the cluster that a cluster file describes.

    Raises:
        StudyError: No such file, or the cluster is not up.
    """
    config = _read(file)
    provider, auth = config["provider"], config.get("auth") or {}
    if (config.get("docker") or {}).get("container_name"):
        raise StudyError(f"{file}: clusters with a `docker` section are not supported")
    # These become parts of ssh's command line and of file names here.
    name = check_name(str(config["cluster_name"]), f"{file}: `cluster_name`")
    if provider["type"] == "local":
        address = provider.get("external_head_ip") or provider.get("head_ip")
        if not address:
            raise StudyError(f"{file}: `provider` needs a head_ip")
    else:
        address, auth = _ask_ray(file, config)
    user = str(auth.get("ssh_user") or os.environ.get("USER", "root"))
    return Head(
        cluster=name,
        address=check_host(str(address), f"{file}: the head"),
        user=check_user(user, f"{file}: `auth.ssh_user`"),
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
    for key in ("provider", "auth", "docker"):
        if not isinstance(config.get(key) or {}, dict):
            raise StudyError(f"{file}: `{key}` is a section, but got {config[key]!r:.60}")
    if not config["provider"].get("type"):
        raise StudyError(f"{file}: `provider.type` is missing")
    return config


def _ask_ray(file: Path, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The head's address and the keys, which a cloud's provider knows; Ray's chatter is dropped."""
    from ray.autoscaler import sdk

    chatter = io.StringIO()
    try:
        with contextlib.redirect_stdout(chatter), contextlib.redirect_stderr(chatter):
            address = str(sdk.get_head_node_ip(str(file)))
            auth = config.get("auth") or {}
            if not auth.get("ssh_private_key"):
                auth = {**auth, "ssh_private_key": _key(file, config)}
            return address, auth
    except StudyError:
        raise
    except SystemExit:
        raise StudyError(f"{file}: {' '.join(chatter.getvalue().split())}") from None
    except Exception as error:
        name = config["cluster_name"]
        reason = " ".join(str(error).split())
        raise StudyError(f"cluster {name} is not up; first: ray up {file} ({reason})") from None


def _key(file: Path, config: dict[str, Any]) -> str:
    """The private key that `ray up` made for a cluster whose file names none."""
    from ray.autoscaler import sdk

    if config["provider"]["type"] != "aws":
        return str((sdk.bootstrap_config(config).get("auth") or {}).get("ssh_private_key") or "")
    # Not Ray's own bootstrap here: where the key is missing it makes another one in the account,
    # which would not open this head.
    name = _head_key_name(config)
    path = Path("~/.ssh", f"{name}.pem").expanduser()
    if not path.exists():
        raise StudyError(
            f"{path} is missing, the key that `ray up` made for cluster {config['cluster_name']}: "
            f"copy it from where you ran `ray up {file}`, or name a key with `auth.ssh_private_key`"
        )
    return str(path)


def _head_key_name(config: dict[str, Any]) -> str:
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND

    provider = _get_node_provider(config["provider"], config["cluster_name"])
    (node, *_) = provider.non_terminated_nodes({TAG_RAY_NODE_KIND: NODE_KIND_HEAD})
    return str(provider._get_cached_node(node).key_name)
