"""From a laptop to the store of a study on a cluster, through a real ssh and a real tunnel.

ssh talks to an sshd of this user's own, started for each connection: no port is opened for it.
"""

from __future__ import annotations

import http.server
import os
import pwd
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from study.cluster import attach as attach_module
from study.cluster import head as head_module
from study.cluster import tunnel as tunnel_module
from study.cluster.attach import follow, reached, show
from study.cluster.detached import Run
from study.cluster.head import Head
from study.errors import StudyError
from study.plan import save_plan
from tests.study.tuning_simulation import make_plan

SSHD = "/usr/sbin/sshd"
ROOT = Path(__file__).resolve().parents[2]


class Answer(http.server.BaseHTTPRequestHandler):
    """A server that says which port it is on."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.connection.getsockname()[1]).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server on loopback that is not the head's own MLflow."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield int(made.server_address[1])
        made.shutdown()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file whose head is this machine, reached by ssh."""
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


def keep(folder: Path, name: str, uri: str | None) -> None:
    home = folder / "studies" / name
    home.mkdir(parents=True)
    save_plan(make_plan(name=name, tracking={"uri": uri}), home)


def test_a_study_is_read_from_the_server_its_file_names(
    cluster: Path, server: int, tmp_path: Path
) -> None:
    """Not from the head's own: the one on loopback there through a tunnel, others as they are."""
    keep(tmp_path, "far", f"http://127.0.0.1:{server}")
    keep(tmp_path, "safe", "https://mlflow.example")
    keep(tmp_path, "file", None)
    with reached(cluster, ["far", "safe", "far"]) as addresses:
        near, safe, again = addresses
        assert safe == "https://mlflow.example"
        assert again == near
        assert near.startswith("http://127.0.0.1:")
        assert not near.endswith(f":{server}")
        with urllib.request.urlopen(near, timeout=10) as answer:
            assert int(answer.read()) == server
    with (
        pytest.raises(StudyError, match="kept in a file on the head of near"),
        reached(cluster, ["file"]),
    ):
        pass
    with pytest.raises(StudyError, match="no study 'fa'"), reached(cluster, ["fa"]):
        pass


def test_a_tunnel_that_breaks_is_opened_again(
    cluster: Path,
    server: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As when a laptop slept; at its end it stays closed."""
    monkeypatch.setattr(tunnel_module, "RETRY_SECONDS", (0.05,))
    keep(tmp_path, "far", f"http://127.0.0.1:{server}")
    ours = psutil.Process()
    with reached(cluster, ["far"]) as (near,):
        (tunnel,) = [child for child in ours.children() if child.name() == "ssh"]
        tunnel.kill()
        wait_for(lambda: "connected again" in capfd.readouterr().err)
        with urllib.request.urlopen(near, timeout=10) as answer:
            assert int(answer.read()) == server
    assert not [child for child in ours.children() if child.name() == "ssh"]


def test_a_head_where_ray_up_never_was_says_so(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "ENVIRONMENT_FILE", str(tmp_path / "none" / "env"))
    with pytest.raises(StudyError, match=r"cluster near is not up: .*`ray up` makes"):
        show(cluster, ["status"])


def test_following_a_head_that_is_not_there_ends_at_once(cluster: Path) -> None:
    """Only a connection that was there can be lost."""
    config = yaml.safe_load(cluster.read_text())
    config["auth"]["ssh_proxy_command"] = "false"
    cluster.write_text(yaml.safe_dump(config))
    with pytest.raises(StudyError, match="cannot reach the head of near"):
        follow(cluster, "far")


def test_output_arrives_as_it_was_written_however_it_is_cut(
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(attach_module, "CHUNK", 1)
    folder = tmp_path / "studies" / ".runs" / "far"
    folder.mkdir(parents=True)
    (folder / "log").write_text("größer ✓\n", encoding="utf-8")
    (folder / "exit").write_text("0")
    assert follow(cluster, "far") == 0
    assert capsys.readouterr().out == "größer ✓\n"


def test_a_study_that_was_started_anew_is_shown_from_its_beginning(
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While the connection was lost; the place in the old output means nothing in the new."""
    monkeypatch.setattr(attach_module, "RETRY_SECONDS", (0.05,))
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path / "studies"))
    run = Run("far")
    lock = run.hold()
    assert lock is not None
    run.keep_log()
    run.log.write_text("the first run\n", encoding="utf-8")
    shown = {"out": "", "err": ""}

    def is_shown(text: str) -> bool:
        now = capsys.readouterr()
        shown["out"], shown["err"] = shown["out"] + now.out, shown["err"] + now.err
        return text in shown["out"]

    codes: list[int] = []
    follower = threading.Thread(target=lambda: codes.append(follow(cluster, "far")), daemon=True)
    follower.start()
    wait_for(lambda: is_shown("the first run\n"))
    run.keep_log()
    run.log.write_text("the second run\n", encoding="utf-8")
    run.exit.write_text("0")
    (ssh,) = [child for child in psutil.Process().children() if child.name() == "ssh"]
    ssh.terminate()
    wait_for(lambda: is_shown("the second run\n"))
    lock.close()
    follower.join(30)
    assert codes == [0]
    assert shown["out"] == "the first run\nthe second run\n"
    assert "far was started anew" in shown["err"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_password_stays_in_the_address_through_the_tunnel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The forward itself is real in the other test; here only what becomes of the address."""
    monkeypatch.setattr(Head, "ssh", lambda self, *options: ["sleep", "60"])
    monkeypatch.setattr(Head, "_await", lambda *_, **__: None)
    head = Head("near", "h", "me")
    with head.reach("postgresql://ada:s3cret@127.0.0.1:5432/mlflow?sslmode=off") as near:
        start, _, end = near.partition("@127.0.0.1:")
        assert start == "postgresql://ada:s3cret"
        assert end.endswith("/mlflow?sslmode=off")
        assert not end.startswith("5432")
