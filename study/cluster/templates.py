"""Cluster file templates: on-premises machines, or AWS."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from study.cluster.validation import check_cluster_name, check_host_name, check_user_name
from study.errors import StudyError

DEFAULT_VENV = "$HOME/dml-study/.venv"
_SSH_KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")


def render_onprem_file(
    *,
    name: str,
    hosts: Sequence[str],
    user: str,
    key: Path | None = None,
    venv: str | None = None,
    shared: str | None = None,
) -> str:
    """Return a cluster file for on-premises machines.

    Args:
        name: Name of the cluster.
        hosts: Host names or addresses; the first is the head.
        user: User that ssh logs in as.
        key: Private key; None for the user's default key.
        venv: Virtual environment with this project on every host; None installs one on each.
        shared: Folder for checkpoints that every host mounts.

    Raises:
        StudyError: There is no host, a host is given twice, or a value is not valid.
    """
    if not hosts:
        raise StudyError("--cluster onprem needs --host HEAD, and --host for each worker")
    check_cluster_name(name, "--name (by default the file's name)")
    for host in hosts:
        check_host_name(host, "--host")
        if list(hosts).count(host) > 1:
            raise StudyError(f"--host {host} is given twice")
    check_user_name(user, "--user")
    for option, text in (("--venv", venv), ("--shared", shared)):
        # These become parts of shell commands in the file.
        if text is not None and not re.fullmatch(r"[A-Za-z0-9_./~:@+-]+", text):
            raise StudyError(
                f"{option} must be a path without spaces or special characters, got {text!r}"
            )
        if text is not None and not text.startswith(("/", "~/", "s3://")):
            raise StudyError(f"{option} must be an absolute path on every host, got {text!r}")
    text = files("study").joinpath("cluster/onprem.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if venv is None or "#INSTALL#" not in line]
    text = "\n".join(lines).replace("#INSTALL# ", "") + "\n"
    replacements = {
        "CLUSTER_NAME": _yaml_scalar(name),
        "HEAD_HOST": _yaml_scalar(hosts[0]),
        "WORKER_HOSTS": ", ".join(map(_yaml_scalar, hosts[1:])),
        "SSH_USER": _yaml_scalar(user),
        "SSH_KEY": _yaml_scalar(str(key or _default_ssh_key())),
        "SHARED_STORAGE": shared or "",
        "PROJECT/": f"{project_folder()}/" if venv is None else "",
        # A shell does not expand ~ within double quotes.
        "VENV/": f"{re.sub('^~', '$HOME', venv or DEFAULT_VENV).rstrip('/')}/",
        "VENV": DEFAULT_VENV,
    }
    for word, value in replacements.items():
        text = text.replace(word, value)
    return text


def _yaml_scalar(text: str) -> str:
    """Quote a text if YAML would not read it as text, as for 2024, 1e3 or `no`."""
    try:
        is_plain = yaml.safe_load(f"[{text}]") == [text]
    except yaml.YAMLError:
        is_plain = False
    return text if is_plain else json.dumps(text)


def render_aws_file(name: str | None = None) -> str:
    """Return the project's cluster.yaml with absolute paths of the project's folder.

    Args:
        name: Name of the cluster; None keeps the file's own.

    Raises:
        StudyError: The name is not valid.
    """
    folder = project_folder()
    text = (folder / "cluster.yaml").read_text(encoding="utf-8")
    if name is not None:
        check_cluster_name(name, "--name")
        text = re.sub(r"(?m)^cluster_name: .*$", f"cluster_name: {_yaml_scalar(name)}", text)
    return re.sub(r"(?m)^(  ~/dml-study/\S+: )\./", rf"\g<1>{folder}/", text)


def project_folder() -> Path:
    """Return the folder of the project's source, which the nodes install.

    Raises:
        StudyError: This is an installed copy without constraints.txt.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "constraints.txt").exists():
        raise StudyError(
            f"{folder} is not a checkout of the project (no constraints.txt), which the nodes "
            "would install; run this from a checkout, or name the nodes' environment with --venv"
        )
    return folder


def _default_ssh_key() -> str:
    for name in _SSH_KEY_NAMES:
        if Path("~/.ssh", name).expanduser().exists():
            return f"~/.ssh/{name}"
    raise StudyError(f"no key in ~/.ssh ({', '.join(_SSH_KEY_NAMES)}); choose one with --key")
