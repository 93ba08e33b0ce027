"""`study new`: a commented study file to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from study.errors import StudyError


@click.command(help="Write a commented study file to start from.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="Name of the study (default: the file's name).")
def command(file: Path, name: str | None) -> None:
    """Write the template; an existing file is never overwritten."""
    if file.exists():
        raise StudyError(f"{file} exists; choose another name")
    if not file.parent.is_dir():
        raise StudyError(f"no folder {file.parent}")
    template = files("study").joinpath("template.yaml").read_text(encoding="utf-8")
    file.write_text(template.replace("NAME", name or file.stem), encoding="utf-8")
    click.echo(f"wrote {file}; edit it, then: study check {file}, study run {file}")
