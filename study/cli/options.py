"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

root_option: Decorator = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the studies (default: $DML_STUDY_HOME or ./studies).",
)
set_option: Decorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="A.B=C",
    help="Override a key of the study file; repeatable.",
)
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for scripts."
)
address_option: Decorator = click.option(
    "--address", help="Run on the Ray cluster at this address (`auto` on one of its nodes)."
)
report_option: Decorator = click.option(
    "--report/--no-report",
    default=True,
    help="Make the report at the end (default), or leave it to `study report`.",
)


cluster_option: Decorator = click.option(
    "--cluster",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="On the cluster of this file, which `ray up FILE` has started.",
)


def print_json(content: Any) -> None:
    """JSON on standard output; numbers that are not numbers become null."""
    click.echo(json.dumps(_plain(content), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
