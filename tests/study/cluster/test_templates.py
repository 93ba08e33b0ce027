"""Cluster files, the head as seen from a laptop, and studies that outlive their starter.

What needs real hosts is in tests/cluster.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.cluster.attach import run_file
from study.cluster.files import onprem_file
from study.cluster.head import Head, find_head
from study.cluster.places import MLFLOW_PORT
from study.errors import StudyError
from study.main import main

KEY = Path("/keys/id_ed25519")
FILE = "name: far\ndata: glyphs\nlosses: [triplet]\nsearch: {trials: 2, repeats: 1}\n"


def own(**changes: Any) -> str:
    options: dict[str, Any] = {"name": "own", "hosts": ["h0", "10.0.0.2"], "user": "me", "key": KEY}
    return onprem_file(**{**options, **changes})


# Cluster files


@pytest.mark.parametrize("venv", [None, "/opt/dml"])
def test_ray_accepts_the_file_of_own_machines(venv: str | None) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(own(venv=venv, shared="/mnt/nfs"))
    assert config["provider"] == {"type": "local", "head_ip": "h0", "worker_ips": ["10.0.0.2"]}
    assert config["auth"] == {"ssh_user": "me", "ssh_private_key": str(KEY)}
    commands = " ".join(config["setup_commands"])
    assert ("pip install" in commands) == (venv is None)
    assert ("file_mounts" in config) == (venv is None)
    assert "DML_STUDY_CHECKPOINTS=/mnt/nfs'" in commands
    assert f'PATH="{venv or "$HOME/dml-study/.venv"}/bin:' in commands
    for word in ("VENV", "PROJECT", "SSH_", "HOST", "SHARED", "INSTALL", "CLUSTER_NAME"):
        assert word not in own(venv=venv).replace("$HOME", "")
    validate_config(prepare_config(config))


def test_words_that_yaml_would_read_as_something_else_stay_words() -> None:
    """A number, a truth value, minutes and seconds, a comment."""
    text = own(name="2024", hosts=["no", "12", "10:20", "fd00::1"], user="007", key=Path("/k #1"))
    config = yaml.safe_load(text)
    assert config["cluster_name"] == "2024"
    assert config["provider"]["head_ip"] == "no"
    assert config["provider"]["worker_ips"] == ["12", "10:20", "fd00::1"]
    assert config["auth"] == {"ssh_user": "007", "ssh_private_key": "/k #1"}


def test_an_environment_in_the_home_of_each_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "told").symlink_to("/bin/true")
    commands = yaml.safe_load(own(venv="~/env"))["setup_commands"]
    script = f"{commands[0]} && . ~/.dml-study/env && command -v told"
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == f"{tmp_path}/env/bin/told"


def config_of(kind: str) -> dict[str, Any]:
    root = Path(__file__).resolve().parents[2]
    text = own() if kind == "onprem" else (root / "cluster.yaml").read_text()
    config: dict[str, Any] = yaml.safe_load(text)
    return config


@pytest.mark.parametrize("kind", ["aws", "onprem"])
def test_every_command_is_one_the_shell_understands(kind: str) -> None:
    """Ray puts each into brackets: a comment at its end would swallow the closing one."""
    config = config_of(kind)
    lists = [value for key, value in config.items() if key.endswith("_commands")]
    commands = [command for part in lists for command in part]
    assert len(commands) >= 8
    for command in commands:
        done = subprocess.run(["bash", "-n", "-c", f"({command})"], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_both_files_install_in_the_same_words() -> None:
    """So what the real `ray up` of own machines installs is what AWS would."""
    words = "pip install -q -c ~/dml-study/constraints.txt ~/dml-study"
    for kind in ("aws", "onprem"):
        config = config_of(kind)
        assert " ".join(config["setup_commands"]).count(words) == 1
        root = "./" if kind == "aws" else f"{Path(__file__).resolve().parents[2]}/"
        sources = {there: here.removeprefix(root) for there, here in config["file_mounts"].items()}
        assert sources == {f"~/dml-study/{name}": name for name in sources.values()}
        assert len(sources) == 7


@pytest.mark.parametrize("kind", ["aws", "onprem"])
def test_every_ray_process_uses_the_token(kind: str) -> None:
    config = config_of(kind)
    environment = next(c for c in config["setup_commands"] if "RAY_AUTH_MODE=token" in c)
    assert environment.rstrip().endswith(" ~/.dml-study/env")
    assert config["cluster_synced_files"] == ["~/.ray/auth_token"]
    assert "get-auth-token --generate" in " ".join(config["head_setup_commands"])
    for part in ("head_start_ray_commands", "worker_start_ray_commands"):
        for command in config[part]:
            assert command.startswith(". ~/.dml-study/env && ")
    assert f"127.0.0.1:{MLFLOW_PORT}" in environment


@pytest.mark.parametrize("kind", ["aws", "onprem"])
def test_set_up_again_changes_nothing(kind: str, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("# mine\n")
    commands = [c for c in config_of(kind)["setup_commands"] if "pip" not in c and "apt" not in c]
    assert len(commands) >= 2
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    contents = []
    for _ in range(2):
        for command in commands:
            subprocess.run(["bash", "-c", command], env=environment, check=True)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        contents.append({path.name: path.read_text() for path in files})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {".bashrc", "env"}
    assert contents[0][".bashrc"] == "# mine\n. ~/.dml-study/env\n"
    told = "import os; from study.folders import cache_dir; print(cache_dir())"
    script = f". ~/.dml-study/env && PYTHONPATH={Path.cwd()} {sys.executable} -c '{told}'"
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == f"{tmp_path}/.cache/dml-study/{socket.gethostname()}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": []}, "needs --host HEAD"),
        ({"name": "a b"}, "letters, digits"),
        ({"name": "../x"}, "letters, digits"),
        ({"name": "x; reboot"}, "letters, digits"),
        ({"user": "-oProxyCommand=x"}, "user name"),
        ({"hosts": ["a", "b", "a"]}, "--host a is given twice"),
        ({"hosts": ["a; reboot"]}, "host name or an address"),
        ({"user": "me'"}, "user name"),
        ({"venv": "/x'; reboot '"}, "plain path"),
        ({"shared": "/a b"}, "plain path"),
        ({"shared": "nfs/dml"}, "a path that every host has"),
    ],
)
def test_words_that_are_no_hosts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        own(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--cluster", "onprem"], "needs --host"),
        (["new", "--cluster", "onprem", "--host", "a", "--key", "/no/key"], "no file /no/key"),
        (["new", "--cluster", "aws", "--name", "bad name!"], "--name takes at most 63 letters"),
        (["new", "x.yaml", "--host", "a"], "--host, --user"),
        (["new"], "name the file"),
        (["run", "my.yaml", "--cluster", "none.yaml"], "no cluster file"),
        (["status", "--cluster", "none.yaml"], "no cluster file"),
        (["status", "s", "--follow"], "--follow is for studies on a cluster"),
        (["report", "s", "--cluster", "none.yaml"], "no cluster file"),
        (["ui", "--cluster", "none.yaml"], "no cluster file"),
        (["stop", "s", "--cluster", "c.yaml", "--root", "x"], "--root is for studies of this"),
        (["run", "my.yaml", "--cluster", "c.yaml", "--address", "auto"], "--address is for"),
        (["report", "s", "--cluster", "c.yaml", "--tracking-uri", "x"], "--tracking-uri is for"),
        (["run", "near.yaml", "--cluster", "c.yaml"], "name a path that every node has"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(FILE)
    Path("near.yaml").write_text(FILE.replace("glyphs", "{name: folder, path: here}"))
    with pytest.raises(SystemExit) as done:
        main(arguments)
    error = capsys.readouterr().err
    assert done.value.code == 2
    assert message in error
    assert error.count("\n") == 1


# The head from outside


def test_the_head_of_own_machines_is_found_without_ray(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(own())
    assert find_head(path) == Head("own", "h0", "me", str(KEY))
    config = yaml.safe_load(own())
    config["provider"]["external_head_ip"] = "203.0.113.9"
    config["auth"]["ssh_proxy_command"] = "nc %h %p"
    path.write_text(yaml.safe_dump(config))
    assert find_head(path) == Head("own", "203.0.113.9", "me", str(KEY), "nc %h %p")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot read"),
        ("x", "is not a cluster file"),
        ("cluster_name: a", "`provider` is missing"),
        ("{cluster_name: a, provider: {type: local}}", "needs a head_ip"),
        ("{cluster_name: ../a, provider: {type: local, head_ip: h}}", "`cluster_name` takes"),
        ("{cluster_name: a$b, provider: {type: local, head_ip: h}}", "`cluster_name` takes"),
        ("{cluster_name: a, provider: {type: local, head_ip: '-oX=y'}}", "the head takes a host"),
        (
            "{cluster_name: a, provider: {type: local, head_ip: h}, auth: {ssh_user: '-l x'}}",
            "`auth.ssh_user` takes a user name",
        ),
        ("{cluster_name: a, provider: {type: local}, docker: {container_name: c}}", "docker"),
        ("{cluster_name: a, provider: local}", "`provider` is a section, but got 'local'"),
        ("{cluster_name: a, provider: {head_ip: h}}", "`provider.type` is missing"),
        ("{cluster_name: a, provider: {type: local, head_ip: h}, auth: me}", "`auth` is a section"),
    ],
)
def test_files_that_are_no_cluster_files(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(StudyError, match=message):
        find_head(tmp_path / "c.yaml")


def test_ssh_asks_nothing_and_remembers_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DML_STUDY_CACHE", str(tmp_path))
    head = Head("own", "h0", "me", str(KEY))
    line = " ".join(head.command(["study", "status", "a; reboot"]))
    for setting in ("BatchMode=yes", "StrictHostKeyChecking=accept-new", f"IdentityFile={KEY}"):
        assert setting in line
    assert line.endswith("me@h0 . ~/.dml-study/env && study status 'a; reboot'")
    assert "made anew" in head.explain("Host key verification failed.")
    with pytest.raises(StudyError, match="cannot reach the head of own"):
        Head("own", "127.0.0.1", "me", proxy="false").run(["true"])


def test_relative_paths_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(FILE)
    with pytest.raises(StudyError, match=r"`data.path` is 'pictures'"):
        run_file(
            tmp_path / "none.yaml",
            path,
            ["data.name=folder", "data.path=pictures"],
            report=True,
            detach=False,
        )
