"""Fixtures: a cluster whose head is this machine, and a server on loopback."""

from __future__ import annotations

import http.server
import os
import pwd
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from study.cluster import head as head_module
from study.cluster.constants import CHECKPOINTS_VARIABLE, TRACKING_VARIABLE

SSHD = "/usr/sbin/sshd"
ROOT = Path(__file__).resolve().parents[3]


class _PortHandler(http.server.BaseHTTPRequestHandler):
    """A server that answers with its port."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.connection.getsockname()[1]).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server on loopback, other than that of the head's MLflow."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _PortHandler) as http_server:
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        yield int(http_server.server_address[1])
        http_server.shutdown()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file whose head is this machine.

    ssh connects to an sshd that is started for each connection, so that no port is opened.
    """
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have ssh and sshd")
        pytest.skip("needs ssh and sshd (openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("key", "host_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    settings = {
        "HostKey": tmp_path / "host_key",
        "AuthorizedKeysFile": tmp_path / "key.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
    }
    (tmp_path / "sshd_config").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
    environment = tmp_path / "env"
    environment.write_text(
        f'export PATH="{Path(sys.executable).parent}:$PATH" PYTHONPATH="{ROOT}"\n'
        f'export DML_STUDY_HOME="{tmp_path / "studies"}"\n'
    )
    monkeypatch.setattr(head_module, "ENVIRONMENT_FILE", str(environment))
    monkeypatch.setenv("DML_STUDY_CACHE", str(tmp_path / "cache"))
    config = {
        "cluster_name": "near",
        "provider": {"type": "local", "head_ip": "head"},
        "auth": {
            "ssh_user": pwd.getpwuid(os.geteuid()).pw_name,
            "ssh_private_key": str(tmp_path / "key"),
            "ssh_proxy_command": f"{SSHD} -i -f {tmp_path / 'sshd_config'}",
        },
    }
    path = tmp_path / "near.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def head_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The studies' folder of a head, with the variables that its cluster file sets."""
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path / "studies"))
    monkeypatch.setenv(TRACKING_VARIABLE, "http://127.0.0.1:5000")
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, "s3://bucket/x")
    return tmp_path / "studies"
