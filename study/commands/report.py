"""`study report`: from the tracking store to the answer."""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import root_option


@click.command(
    help="Make the report of a study from its tracking store alone; with --tracking-uri from "
    "anywhere, without the study's directory. Several names give a comparison of the studies.",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.")
@click.option("--tracking-uri", help="MLflow server or database that holds the studies.")
@root_option
def command(
    names: tuple[str, ...], out: Path | None, tracking_uri: str | None, root: Path | None
) -> None:
    """Read the trial tables, write the report."""
    from study.reporting import compare, find_store, make_report

    stores = [find_store(name, tracking_uri, root) for name in names]
    if len(stores) > 1:
        compare(stores, out or Path("-".join(s.name for s in stores) + "-report"))
        return
    store = stores[0]
    make_report(store.uri, store.name, out or store.report)
