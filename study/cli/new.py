"""`study new`: a commented study file, or a cluster file, to start from."""

from __future__ import annotations

import getpass
from importlib.resources import files
from pathlib import Path

import click

from study.errors import StudyError


@click.command(
    help="Write a commented study file to start from; with --cluster a file for `ray up`: "
    "`onprem` of your own machines (--host for each, the head first), `aws` of spot GPUs."
)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--name", help="Name of the study or cluster (default: the file's name; aws: dml-study)."
)
@click.option("--cluster", type=click.Choice(["aws", "onprem"]), help="Write a cluster file.")
@click.option("--host", "hosts", multiple=True, help="onprem: a machine; the first is the head.")
@click.option("--user", help="onprem: who ssh logs in as (default: you).")
@click.option("--key", type=click.Path(path_type=Path), help="onprem: private key for ssh.")
@click.option("--venv", help="onprem: environment with this project that every host has.")
@click.option("--shared", help="onprem: folder that every host mounts, for checkpoints.")
def command(
    file: Path | None,
    name: str | None,
    cluster: str | None,
    hosts: tuple[str, ...],
    user: str | None,
    key: Path | None,
    venv: str | None,
    shared: str | None,
) -> None:
    """Write the template; an existing file is never overwritten."""
    if file is None:
        if cluster is None:
            raise StudyError("name the file: study new my.yaml")
        file = Path(f"{cluster}.yaml")
    if cluster != "onprem" and (hosts or user or key or venv or shared):
        raise StudyError("--host, --user, --key, --venv and --shared are for --cluster onprem")
    if file.exists():
        raise StudyError(f"{file} exists; choose another name")
    if not file.parent.is_dir():
        raise StudyError(f"no folder {file.parent}")
    if cluster is None:
        template = files("study").joinpath("template.yaml").read_text(encoding="utf-8")
        file.write_text(template.replace("NAME", _study_name(name, file), 1), encoding="utf-8")
        click.echo(f"wrote {file}; edit it, then: study check {file}, study run {file}")
        return
    from study.cluster.files import aws_file, onprem_file

    if cluster == "aws":
        text = aws_file(name)
    else:
        text = onprem_file(
            name=name or file.stem,
            hosts=hosts,
            user=user or getpass.getuser(),
            key=_existing(key) if key else None,
            venv=venv,
            shared=shared,
        )
    file.write_text(text, encoding="utf-8")
    click.echo(f"wrote {file}; edit it, then: ray up {file}, study run my.yaml --cluster {file}")


def _existing(key: Path) -> Path:
    path = key.expanduser().absolute()
    if not path.is_file():
        raise StudyError(f"--key: no file {path}")
    return path


def _study_name(name: str | None, file: Path) -> str:
    """The name as YAML writes it; that of a file is made to fit, one that was chosen is not."""
    import re

    import yaml

    from study.file import NAME

    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).lstrip("._-")[:100] or "study"
    elif not NAME.fullmatch(name):
        raise StudyError(
            f"a study name is at most 100 letters, digits, '.', '_' or '-', not {name!r}"
        )
    # 2024, 1e3 or on would not be read as text without quotes.
    return name if name[0].isalpha() and yaml.safe_load(name) == name else f"'{name}'"
