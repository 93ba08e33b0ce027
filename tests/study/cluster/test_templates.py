"""Cluster file templates; tests/faults/test_ray_up.py uses them on real hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.cluster.constants import MLFLOW_PORT
from study.errors import StudyError
from tests.support.cluster_files import (
    SSH_KEY,
    make_onprem_file,
)


@pytest.mark.parametrize("venv", [None, "/opt/dml"])
def test_ray_accepts_the_onprem_file(venv: str | None) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(make_onprem_file(venv=venv, shared="/mnt/nfs"))
    assert config["provider"] == {"type": "local", "head_ip": "h0", "worker_ips": ["10.0.0.2"]}
    assert config["auth"] == {"ssh_user": "me", "ssh_private_key": str(SSH_KEY)}
    commands = " ".join(config["setup_commands"])
    assert ("pip install" in commands) == (venv is None)
    assert ("file_mounts" in config) == (venv is None)
    assert "DML_STUDY_CHECKPOINTS=/mnt/nfs'" in commands
    assert f'PATH="{venv or "$HOME/dml-study/.venv"}/bin:' in commands
    for word in ("VENV", "PROJECT", "SSH_", "HOST", "SHARED", "INSTALL", "CLUSTER_NAME"):
        assert word not in make_onprem_file(venv=venv).replace("$HOME", "")
    validate_config(prepare_config(config))


def test_texts_that_yaml_would_read_as_other_types_are_quoted() -> None:
    """A number, a truth value, minutes and seconds, a comment."""
    text = make_onprem_file(
        name="2024", hosts=["no", "12", "10:20", "fd00::1"], user="007", key=Path("/k #1")
    )
    config = yaml.safe_load(text)
    assert config["cluster_name"] == "2024"
    assert config["provider"]["head_ip"] == "no"
    assert config["provider"]["worker_ips"] == ["12", "10:20", "fd00::1"]
    assert config["auth"] == {"ssh_user": "007", "ssh_private_key": "/k #1"}


def test_an_environment_in_the_home_of_each_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "tool").symlink_to("/bin/true")
    commands = yaml.safe_load(make_onprem_file(venv="~/env"))["setup_commands"]
    script = f"{commands[0]} && . ~/.dml-study/env && command -v tool"
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == f"{tmp_path}/env/bin/tool"


def config_of(kind: str) -> dict[str, Any]:
    root = Path(__file__).resolve().parents[3]
    text = make_onprem_file() if kind == "onprem" else (root / "cluster.yaml").read_text()
    config: dict[str, Any] = yaml.safe_load(text)
    return config


@pytest.mark.parametrize("kind", ["aws", "onprem"])
def test_every_command_is_valid_shell(kind: str) -> None:
    """Ray encloses each in parentheses, so that a comment at its end would hide the closing one."""
    config = config_of(kind)
    lists = [value for key, value in config.items() if key.endswith("_commands")]
    commands = [command for part in lists for command in part]
    assert len(commands) >= 8
    for command in commands:
        done = subprocess.run(["bash", "-n", "-c", f"({command})"], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_both_files_install_with_the_same_command() -> None:
    """The real `ray up` of on-premises machines therefore tests what AWS installs."""
    words = "pip install -q -c ~/dml-study/constraints.txt ~/dml-study"
    for kind in ("aws", "onprem"):
        config = config_of(kind)
        assert " ".join(config["setup_commands"]).count(words) == 1
        root = "./" if kind == "aws" else f"{Path(__file__).resolve().parents[3]}/"
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
    code = "import os; from study.utils.paths import cache_dir; print(cache_dir())"
    script = f". ~/.dml-study/env && PYTHONPATH={Path.cwd()} {sys.executable} -c '{code}'"
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
        ({"venv": "/x'; reboot '"}, "without spaces"),
        ({"shared": "/a b"}, "without spaces"),
        ({"shared": "nfs/dml"}, "an absolute path on every host"),
    ],
)
def test_invalid_values_are_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        make_onprem_file(**changes)


# The head from outside
