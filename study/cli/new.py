"""`study new`: write a commented study file or a cluster file to start from."""

from __future__ import annotations

import getpass
from importlib.resources import files
from pathlib import Path

import click

from study.errors import StudyError


@click.command(
    help="Write a commented study file to start from. With --cluster, write a file for `ray up`: "
    "`onprem` for your own machines (one --host each, the head first), `aws` for spot GPUs."
)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--name", help="Name of the study or cluster (default: the file's name; aws: dml-study)."
)
@click.option("--cluster", type=click.Choice(["aws", "onprem"]), help="Write a cluster file.")
@click.option("--host", "hosts", multiple=True, help="onprem: a machine; the first is the head.")
@click.option("--user", help="onprem: user name for ssh (default: yours).")
@click.option("--key", type=click.Path(path_type=Path), help="onprem: private key for ssh.")
@click.option(
    "--venv", help="onprem: virtual environment with this project, at the same path on every host."
)
@click.option("--shared", help="onprem: folder for checkpoints that every host mounts.")
def new_command(
    file: Path | None,
    name: str | None,
    cluster: str | None,
    hosts: tuple[str, ...],
    user: str | None,
    key: Path | None,
    venv: str | None,
    shared: str | None,
) -> None:
    """Write the template; never overwrite a file."""
    if file is None:
        if cluster is None:
            raise StudyError("`study new` needs a file name, for example: study new my.yaml")
        file = Path(f"{cluster}.yaml")
    if cluster != "onprem" and (hosts or user or key or venv or shared):
        raise StudyError("--host, --user, --key, --venv and --shared are for --cluster onprem")
    if file.exists():
        raise StudyError(f"{file} exists; choose another name")
    if not file.parent.is_dir():
        raise StudyError(f"folder {file.parent} does not exist")
    if cluster is None:
        template = files("study.config").joinpath("template.yaml").read_text(encoding="utf-8")
        file.write_text(template.replace("NAME", _yaml_study_name(name, file), 1), encoding="utf-8")
        click.echo(f"wrote {file}; edit it, then: study check {file}, study run {file}")
        return
    from study.cluster.templates import render_aws_file, render_onprem_file

    if cluster == "aws":
        text = render_aws_file(name)
    else:
        text = render_onprem_file(
            name=name or file.stem,
            hosts=hosts,
            user=user or getpass.getuser(),
            key=_resolve_key_file(key) if key else None,
            venv=venv,
            shared=shared,
        )
    file.write_text(text, encoding="utf-8")
    click.echo(f"wrote {file}; edit it, then: ray up {file}, study run my.yaml --cluster {file}")


def _resolve_key_file(key: Path) -> Path:
    path = key.expanduser().absolute()
    if not path.is_file():
        raise StudyError(f"--key: {path} is not a file")
    return path


def _yaml_study_name(name: str | None, file: Path) -> str:
    """Return the study's name as YAML; a file name is made valid, a given name must be valid."""
    import re

    import yaml

    from study.config.schema import STUDY_NAME_PATTERN, STUDY_NAME_RULE

    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).lstrip("._-")[:100] or "study"
    elif not STUDY_NAME_PATTERN.fullmatch(name):
        raise StudyError(f"{STUDY_NAME_RULE}, but got {name!r}")
    # Without quotes, YAML would not read 2024, 1e3 or on as text.
    return name if name[0].isalpha() and yaml.safe_load(name) == name else f"'{name}'"
