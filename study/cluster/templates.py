"""Cluster files to start from: the user's own machines, or AWS."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from study.cluster.names import check_host, check_name, check_user
from study.errors import StudyError

DEFAULT_VENV = "$HOME/dml-study/.venv"
_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


def onprem_file(
    *,
    name: str,
    hosts: Sequence[str],
    user: str,
    key: Path | None = None,
    venv: str | None = None,
    shared: str | None = None,
) -> str:
    """A cluster file for one's own machines.

    Args:
        name: Of the cluster.
        hosts: Names or addresses; the first is the head.
        user: Who ssh logs in as.
        key: Private key; None takes the user's own.
        venv: An environment with this project that every host has; None installs one on each.
        shared: Folder that every host mounts, for checkpoints.

    Raises:
        StudyError: No host, one twice, or a word that is no host name.
    """
    if not hosts:
        raise StudyError("--cluster onprem needs --host HEAD, and a --host for each worker")
    check_name(name, "--name (or else the file's name)")
    for host in hosts:
        check_host(host, "--host")
        if list(hosts).count(host) > 1:
            raise StudyError(f"--host {host} is given twice")
    check_user(user, "--user")
    for option, text in (("--venv", venv), ("--shared", shared)):
        # These end up in shell commands of the file.
        if text is not None and not re.fullmatch(r"[A-Za-z0-9_./~:@+-]+", text):
            raise StudyError(f"{option} takes a plain path without blanks, but got {text!r}")
        if text is not None and not text.startswith(("/", "~/", "s3://")):
            raise StudyError(f"{option} takes a path that every host has, but got {text!r}")
    text = files("study").joinpath("cluster/onprem.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if venv is None or "#INSTALL#" not in line]
    text = "\n".join(lines).replace("#INSTALL# ", "") + "\n"
    replacements = {
        "CLUSTER_NAME": _scalar(name),
        "HEAD_HOST": _scalar(hosts[0]),
        "WORKER_HOSTS": ", ".join(map(_scalar, hosts[1:])),
        "SSH_USER": _scalar(user),
        "SSH_KEY": _scalar(str(key or _own_key())),
        "SHARED_STORAGE": shared or "",
        "PROJECT/": f"{project_folder()}/" if venv is None else "",
        # Within double quotes a shell leaves ~ as it is.
        "VENV/": f"{re.sub('^~', '$HOME', venv or DEFAULT_VENV).rstrip('/')}/",
        "VENV": DEFAULT_VENV,
    }
    for word, value in replacements.items():
        text = text.replace(word, value)
    return text


def _scalar(text: str) -> str:
    """A text as YAML writes it: 2024, 1e3 or `no` would not be read as text without quotes."""
    try:
        plain = yaml.safe_load(f"[{text}]") == [text]
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text)


def aws_file(name: str | None = None) -> str:
    """The project's cluster.yaml, with the project's own folder written out.

    Args:
        name: Of the cluster; None keeps the file's own.

    Raises:
        StudyError: The name is none.
    """
    folder = project_folder()
    text = (folder / "cluster.yaml").read_text(encoding="utf-8")
    if name is not None:
        check_name(name, "--name")
        text = re.sub(r"(?m)^cluster_name: .*$", f"cluster_name: {_scalar(name)}", text)
    return re.sub(r"(?m)^(  ~/dml-study/\S+: )\./", rf"\g<1>{folder}/", text)


def project_folder() -> Path:
    """The project's source, which the nodes install.

    Raises:
        StudyError: This is an installed copy without constraints.txt.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "constraints.txt").exists():
        raise StudyError(
            f"{folder} is not the project's source (no constraints.txt), which the nodes would "
            "install: run this from a checkout, or name an environment of the nodes with --venv"
        )
    return folder


def _own_key() -> str:
    for name in _KEYS:
        if Path("~/.ssh", name).expanduser().exists():
            return f"~/.ssh/{name}"
    raise StudyError(f"no key in ~/.ssh ({', '.join(_KEYS)}); name one with --key")
