"""`study report`: from the tracking store to the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from study.commands.options import cluster_option, root_option


@click.command(
    help="Make the report of a study from its tracking store alone: with --tracking-uri from "
    "anywhere, with --cluster from the head of a cluster, without the study's directory. Several "
    "names give a comparison of the studies.",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.")
@click.option("--tracking-uri", help="MLflow server or database that holds the studies.")
@root_option
@cluster_option
def command(
    names: tuple[str, ...],
    out: Path | None,
    tracking_uri: str | None,
    root: Path | None,
    cluster: Path | None,
) -> None:
    """Read the trial tables, write the report."""
    if cluster is not None:
        from study.cluster.attach import reached, refuse_local

        refuse_local(root=root, tracking_uri=tracking_uri)
        with reached(cluster, names) as addresses:
            _report(names, out, addresses, None)
        return
    _report(names, out, [tracking_uri] * len(names), root)


def _report(
    names: tuple[str, ...], out: Path | None, uris: Sequence[str | None], root: Path | None
) -> None:
    from study.reporting import compare, find_store, make_report, partial_text

    stores = [find_store(name, uri, root) for name, uri in zip(names, uris, strict=True)]
    for store in stores:
        if lacking := partial_text(store):
            click.echo(f"warning: {lacking}", err=True)
    if len(stores) > 1:
        compare(stores, out or Path("-".join(s.name for s in stores) + "-report"))
        return
    store = stores[0]
    make_report(store.uri, store.name, out or store.report)
