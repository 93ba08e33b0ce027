"""ssh tunnels that are reopened when they break."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import psutil
import pytest

from study.cluster import tunnel as tunnel_module
from study.cluster.client import open_stores
from study.cluster.tunnel import SshTunnel
from tests.support.cluster_files import (
    save_study,
    wait_until,
)


def test_a_broken_tunnel_is_reopened(
    cluster: Path,
    server: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As after a laptop slept; once closed, it stays closed."""
    monkeypatch.setattr(tunnel_module, "RETRY_SECONDS", (0.05,))
    save_study(tmp_path, "far", f"http://127.0.0.1:{server}")
    process = psutil.Process()
    with open_stores(cluster, ["far"]) as (near,):
        (tunnel,) = [child for child in process.children() if child.name() == "ssh"]
        tunnel.kill()
        wait_until(lambda: "connected again" in capfd.readouterr().err)
        with urllib.request.urlopen(near, timeout=10) as answer:
            assert int(answer.read()) == server
    assert not [child for child in process.children() if child.name() == "ssh"]


def test_the_error_output_of_ssh_is_returned_once() -> None:
    tunnel = SshTunnel(["sh", "-c", "echo no route >&2; exit 255"], "x", lambda: False)
    assert tunnel.read_stderr() == "no route\n"
    assert tunnel.process.returncode == 255
    assert tunnel.read_stderr() == ""
    tunnel.close()


def test_an_ssh_that_ends_is_replaced_until_the_tunnel_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first process ends at once, the second fails, and the third stays."""
    monkeypatch.setattr(tunnel_module, "RETRY_SECONDS", (0.01,))
    monkeypatch.setattr(tunnel_module, "OPEN_POLL_SECONDS", 0.01)
    count = tmp_path / "count"
    script = f"echo x >> {count}; test $(wc -l < {count}) -lt 3 || exec sleep 60"
    tunnel = SshTunnel(["sh", "-c", script], "the head", lambda: count.read_text().count("x") == 3)
    tunnel.start_reconnecting()
    wait_until(lambda: count.exists() and count.read_text().count("x") == 3)
    tunnel.close()
    assert tunnel.process.returncode is not None
    assert "the head: connection lost" in capsys.readouterr().err
