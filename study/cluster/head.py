"""Head of a cluster as seen from a laptop: its address, commands over ssh, and tunnels."""

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

from study.cluster.constants import ENVIRONMENT_FILE, MLFLOW_PORT, SUPERVISOR_LOG
from study.cluster.tunnel import SshTunnel
from study.cluster.validation import check_cluster_name, check_host_name, check_user_name
from study.errors import StudyError
from study.utils.paths import cache_dir

SSH_FAILED_EXIT_CODE = 255
TUNNEL_TIMEOUT_SECONDS = 120.0
PROBE_TIMEOUT_SECONDS = 3.0
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORTS = {
    "http": 80,
    "https": 443,
    "postgresql": 5432,
    "postgres": 5432,
    "mysql": 3306,
    "mssql": 1433,
}


@dataclass(frozen=True)
class ClusterHead:
    """Address and credentials of a cluster's head.

    Args:
        cluster: Name of the cluster.
        address: Host name or address of the head.
        user: User that ssh logs in as.
        key: Private key; empty for ssh's default.
        proxy: ssh's ProxyCommand, if any.
    """

    cluster: str
    address: str
    user: str
    key: str = ""
    proxy: str = ""

    @property
    def known_hosts(self) -> Path:
        """File with the head's host key, which is trusted on first use."""
        return cache_dir() / "known_hosts" / self.cluster

    def ssh_command(self, *options: str) -> list[str]:
        """Return the ssh command up to and including the destination."""
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

    def remote_command(self, words: Sequence[str]) -> list[str]:
        """Return the ssh command that runs `words` on the head, in its cluster's environment."""
        return [*self.ssh_command(), f". {ENVIRONMENT_FILE} && {shlex.join(words)}"]

    def run_command(
        self, words: Sequence[str], *, content: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head and wait for its end.

        Args:
            words: Command and arguments.
            content: Standard input of the command.

        Raises:
            StudyError: The head cannot be reached, or `ray up` has not set it up.
        """
        result = subprocess.run(
            self.remote_command(words), input=content, capture_output=True, text=True
        )
        if result.returncode == SSH_FAILED_EXIT_CODE:
            raise StudyError(self.explain_ssh_failure(result.stderr))
        if result.returncode and f"{Path(ENVIRONMENT_FILE).name}: No such file" in result.stderr:
            raise StudyError(
                f"cluster {self.cluster} is not up: {self.address} has no {ENVIRONMENT_FILE}, "
                "which `ray up` creates"
            )
        return result

    def explain_ssh_failure(self, message: str) -> str:
        """Return why ssh failed and what to do, in one line."""
        where = f"the head of {self.cluster} ({self.user}@{self.address})"
        if "Host key verification failed" in message:
            return (
                f"the host key of {where} changed; if the head was recreated, remove "
                f"{self.known_hosts}; otherwise this may be a man-in-the-middle attack"
            )
        return f"cannot reach {where}: {' '.join(message.split()) or 'ssh failed'}"

    @contextlib.contextmanager
    def open_mlflow_tunnel(self, port: int = 0) -> Iterator[str]:
        """Open a tunnel to the head's own MLflow server; yield its address on this machine.

        Raises:
            StudyError: The tunnel cannot be opened, or no server answers.
        """
        with self.open_store(f"http://127.0.0.1:{MLFLOW_PORT}", port) as address:
            yield address

    @contextlib.contextmanager
    def open_store(self, uri: str, port: int = 0) -> Iterator[str]:
        """Make a tracking store that the head knows as `uri` reachable from this machine.

        Yields the URI itself if it can be reached directly (or is https, whose certificate names
        its host), otherwise the address of a tunnel through the head.

        Args:
            uri: Tracking URI.
            port: Local port of a tunnel to a server; 0 selects a free one.

        Raises:
            StudyError: The tunnel cannot be opened, nothing answers at its end, or the store is a
                file on the head.
        """
        from study.tracking.ui_server import find_free_port

        parts = urlsplit(uri)
        scheme = parts.scheme.split("+")[0]
        if scheme == "sqlite":
            raise StudyError(
                f"this study is tracked in a file on the head of {self.cluster}, without a server; "
                "set `tracking: {uri: ...}` to a server that both machines can reach"
            )
        host, remote_port = parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORTS[scheme]
        if scheme == "https" or (
            host not in LOOPBACK_HOSTS and _accepts_connections(host, remote_port)
        ):
            yield uri
            return
        port = (port if scheme == "http" else 0) or find_free_port()
        tunnel = SshTunnel(
            self.ssh_command("-N", "-L", f"127.0.0.1:{port}:[{host}]:{remote_port}"),
            f"the head of {self.cluster}",
            lambda: _accepts_connections("127.0.0.1", port),
        )
        try:
            self._wait_for_tunnel(tunnel, port, is_server=scheme == "http")
            tunnel.start_reconnecting()
            user, at, _ = parts.netloc.rpartition("@")
            yield urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))
        finally:
            tunnel.close()

    def _wait_for_tunnel(self, tunnel: SshTunnel, port: int, *, is_server: bool) -> None:
        """Wait until a tunnel is open and, if it leads to an MLflow server, the server answers."""
        deadline = time.monotonic() + TUNNEL_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if tunnel.process.poll() is not None:
                raise StudyError(self.explain_ssh_failure(tunnel.read_stderr()))
            if not is_server and _accepts_connections("127.0.0.1", port):
                return
            with contextlib.suppress(OSError, http.client.HTTPException):
                if is_server:
                    _request_health(port)
                    return
            time.sleep(0.3)
        raise StudyError(
            f"the MLflow server of {self.cluster} does not answer; the log of the head's own "
            f"server is {SUPERVISOR_LOG} on the head"
        )


def _request_health(port: int) -> None:
    with contextlib.suppress(urllib.error.HTTPError):  # it answers, even if it requires a login
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10.0).close()


def _accepts_connections(host: str, port: int) -> bool:
    """Whether this machine can connect to the port."""
    try:
        socket.create_connection((host, port), timeout=PROBE_TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


def find_head(file: Path) -> ClusterHead:
    """Find the head of the cluster that a cluster file describes.

    Raises:
        StudyError: The file is missing or wrong, or the cluster is not up.
    """
    config = _read_cluster_file(file)
    provider, auth = config["provider"], config.get("auth") or {}
    if (config.get("docker") or {}).get("container_name"):
        raise StudyError(f"{file}: clusters with a `docker` section are not supported")
    # These become parts of ssh's command line and of file names on this machine.
    name = check_cluster_name(str(config["cluster_name"]), f"{file}: `cluster_name`")
    if provider["type"] == "local":
        address = provider.get("external_head_ip") or provider.get("head_ip")
        if not address:
            raise StudyError(f"{file}: `provider` needs a head_ip")
    else:
        address, auth = _query_ray_head(file, config)
    user = str(auth.get("ssh_user") or os.environ.get("USER", "root"))
    return ClusterHead(
        cluster=name,
        address=check_host_name(str(address), f"{file}: the head"),
        user=check_user_name(user, f"{file}: `auth.ssh_user`"),
        key=str(Path(auth["ssh_private_key"]).expanduser()) if auth.get("ssh_private_key") else "",
        proxy=str(auth.get("ssh_proxy_command") or ""),
    )


def _read_cluster_file(file: Path) -> dict[str, Any]:
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
            raise StudyError(f"{file}: `{key}` must be a section, got {config[key]!r:.60}")
    if not config["provider"].get("type"):
        raise StudyError(f"{file}: `provider.type` is missing")
    return config


def _query_ray_head(file: Path, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the head's address and ssh settings from the cloud provider, without Ray's output."""
    from ray.autoscaler import sdk

    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            address = str(sdk.get_head_node_ip(str(file)))
            auth = config.get("auth") or {}
            if not auth.get("ssh_private_key"):
                auth = {**auth, "ssh_private_key": _ray_private_key(file, config)}
            return address, auth
    except StudyError:
        raise
    except SystemExit:
        raise StudyError(f"{file}: {' '.join(output.getvalue().split())}") from None
    except Exception as error:
        name = config["cluster_name"]
        reason = " ".join(str(error).split())
        raise StudyError(f"cluster {name} is not up; run: ray up {file} ({reason})") from None


def _ray_private_key(file: Path, config: dict[str, Any]) -> str:
    """Return the private key that `ray up` created for a cluster whose file names none."""
    from ray.autoscaler import sdk

    if config["provider"]["type"] != "aws":
        return str((sdk.bootstrap_config(config).get("auth") or {}).get("ssh_private_key") or "")
    # Ray's own bootstrap would create another key pair in the account if the key is missing, and
    # that key would not open this head.
    name = _head_key_name(config)
    path = Path("~/.ssh", f"{name}.pem").expanduser()
    if not path.exists():
        raise StudyError(
            f"{path}, the key that `ray up` created for cluster {config['cluster_name']}, is "
            f"missing; copy it from the machine on which you ran `ray up {file}`, or set "
            "`auth.ssh_private_key`"
        )
    return str(path)


def _head_key_name(config: dict[str, Any]) -> str:
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND

    provider = _get_node_provider(config["provider"], config["cluster_name"])
    (node, *_) = provider.non_terminated_nodes({TAG_RAY_NODE_KIND: NODE_KIND_HEAD})
    return str(provider._get_cached_node(node).key_name)
