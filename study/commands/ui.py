"""`study ui`: MLflow's own UI on a study's store."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import click

from study.commands.options import cluster_option, root_option


@click.command(
    help="Start MLflow's UI on the study's store (loopback only), or open a tunnel to that of a "
    "cluster; ctrl-C stops it."
)
@click.argument("name", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@root_option
@cluster_option
def command(name: str | None, port: int, root: Path | None, cluster: Path | None) -> None:
    """Serve until interrupted. Without a name: the study that ran last."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if cluster is not None:
        _through_tunnel(cluster, name, port, root)
        return
    from study.errors import StudyError
    from study.home import studies_root
    from study.reporting import find_store
    from study.tracking.address import is_database
    from study.tracking.local import default_artifact_root, is_local, relocate
    from study.tracking.reader import study_path
    from study.tracking.redaction import redact
    from study.tracking.server import serve

    if name is None:
        stores = sorted(studies_root(root).glob("*/mlflow.db"), key=lambda p: p.stat().st_mtime)
        if not stores:
            raise StudyError(f"{studies_root(root)} holds no studies with a store of their own")
        name = stores[-1].parent.name
    store = find_store(name, None, root)
    if not is_database(store.uri):
        click.echo(f"{name} is kept on {redact(store.uri)}; open that in a browser")
        return
    directory = store.report.parent
    if is_local(store.uri):
        if not (directory / "mlflow.db").exists():
            raise StudyError(f"{name} has no MLflow store yet; run it first")
        relocate(directory)
    artifacts = default_artifact_root(directory)
    click.echo("starting MLflow ...", err=True)
    with serve(store.uri, port=port, artifact_root=artifacts) as address:
        click.echo(f"{name}: {address}{study_path(store.uri, name)}  (ctrl-C stops)")
        _wait()


def _through_tunnel(cluster: Path, name: str | None, port: int, root: Path | None) -> None:
    """The server that keeps the study, or the head's own; one on loopback there through a tunnel.

    A database has no server: MLflow's is started here, on the tunnel to it.
    """
    from study.cluster.attach import reached, refuse_local
    from study.cluster.head import find_head
    from study.tracking.address import is_database
    from study.tracking.reader import study_path
    from study.tracking.redaction import redact
    from study.tracking.server import serve

    refuse_local(root=root)
    with contextlib.ExitStack() as opened:
        if name is None:
            head = find_head(cluster)
            address = opened.enter_context(head.tunnel(port))
            click.echo(f"{head.cluster}: {address}  (ctrl-C stops)")
        else:
            (address,) = opened.enter_context(reached(cluster, [name], port))
            path = study_path(address, name)
            if is_database(address):
                click.echo("starting MLflow ...", err=True)
                address = opened.enter_context(serve(address, port=port))
            click.echo(f"{name}: {redact(address)}{path}  (ctrl-C stops)")
        _wait()


def _wait() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
