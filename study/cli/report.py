"""`study report`: write the report of a study, or a comparison of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from study.cli.options import cluster_option, root_option


@click.command(
    help="Write the report of a study from its tracking store. With --tracking-uri or --cluster, "
    "the study's directory is not needed. Several names give a comparison of the studies.",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.")
@click.option("--tracking-uri", help="MLflow server or database that has the studies.")
@root_option
@cluster_option
def report_command(
    names: tuple[str, ...],
    out: Path | None,
    tracking_uri: str | None,
    root: Path | None,
    cluster: Path | None,
) -> None:
    """Read the trial tables and write the report."""
    if cluster is not None:
        from study.cluster.client import open_stores, reject_local_options

        reject_local_options(root=root, tracking_uri=tracking_uri)
        with open_stores(cluster, names) as addresses:
            _write_reports(names, out, addresses, None)
        return
    _write_reports(names, out, [tracking_uri] * len(names), root)


def _write_reports(
    names: tuple[str, ...], out: Path | None, uris: Sequence[str | None], root: Path | None
) -> None:
    from study.cli.report_text import write_and_print_report, write_comparison
    from study.results import find_store, missing_records_warning

    stores = [find_store(name, uri, root) for name, uri in zip(names, uris, strict=True)]
    for store in stores:
        if warning := missing_records_warning(store):
            click.echo(f"warning: {warning}", err=True)
    if len(stores) > 1:
        write_comparison(stores, out or Path("-".join(s.name for s in stores) + "-report"))
        return
    store = stores[0]
    write_and_print_report(store.uri, store.name, out or store.report)
