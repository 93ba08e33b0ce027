"""Options that several commands share, and JSON output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

OptionDecorator = Callable[[Callable[..., Any]], Callable[..., Any]]

root_option: OptionDecorator = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the studies (default: $DML_STUDY_HOME or ./studies).",
)
set_option: OptionDecorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="A.B=C",
    help="Override a key of the study file; repeatable.",
)
json_option: OptionDecorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for scripts."
)
address_option: OptionDecorator = click.option(
    "--address", help="Run on the Ray cluster at this address (`auto` on one of its nodes)."
)
report_option: OptionDecorator = click.option(
    "--report/--no-report",
    default=True,
    help="Whether to write the report at the end (default), or leave it to `study report`.",
)
cluster_option: OptionDecorator = click.option(
    "--cluster",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Use the cluster that `ray up FILE` started.",
)


def print_json(content: Any) -> None:
    """Print JSON on standard output; NaN and infinity become null."""
    click.echo(json.dumps(_replace_non_finite(content), indent=2, ensure_ascii=False))


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {str(k): _replace_non_finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(v) for v in value]
    return value
