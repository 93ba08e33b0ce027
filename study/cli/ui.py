"""`study ui`: MLflow's own UI on a study's store."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from study.commands.options import cluster_option, root_option

if TYPE_CHECKING:
    from study.reporting import Store

_SIGNS = ("plan.json", "optuna.journal", "mlflow.db")


@click.command(
    help="Start MLflow's UI on the study's store (loopback only), or open a tunnel to that of a "
    "cluster; ctrl-C stops it."
)
@click.argument("name", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@root_option
@cluster_option
def command(name: str | None, port: int, root: Path | None, cluster: Path | None) -> int:
    """Serve until interrupted. Without a name: the study that ran last, and its neighbours."""
    for end in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal, too
        signal.signal(end, _stop)
    if cluster is not None:
        return _through_tunnel(cluster, name, port, root)
    from study.reporting import find_store
    from study.tracking.address import is_database
    from study.tracking.redaction import redact

    if name is not None:
        store, others = find_store(name, None, root), []
    else:
        store, *others = _stores(root)
    neighbours = [other for other in others if other.uri == store.uri]
    elsewhere = [other for other in others if other.uri != store.uri]
    if not is_database(store.uri):
        click.echo(f"{store.name} is kept on {redact(store.uri)}; open that in a browser")
        _say(elsewhere)
        return 0
    return _serve(store, port, neighbours, elsewhere)


def _serve(store: Store, port: int, neighbours: list[Store], elsewhere: list[Store]) -> int:
    from study.errors import StudyError
    from study.tracking.local import default_artifact_root, is_local, relocate
    from study.tracking.reader import study_path
    from study.tracking.server import serve

    directory = store.report.parent
    if is_local(store.uri):
        if not (directory / "mlflow.db").exists():
            raise StudyError(f"{store.name} has no MLflow store yet; run it first")
        relocate(directory)
    artifacts = default_artifact_root(directory)
    click.echo("starting MLflow ...", err=True)
    with serve(store.uri, port=port, artifact_root=artifacts) as address:
        click.echo(f"{store.name}: {address}{study_path(store.uri, store.name)}  (ctrl-C stops)")
        for other in neighbours:
            with contextlib.suppress(StudyError):  # it was never run
                click.echo(f"{other.name}: {address}{study_path(other.uri, other.name)}")
        _say(elsewhere)
        return _wait(address)


def _stores(root: Path | None) -> list[Store]:
    """The stores of the folder's studies, of the one that ran last first."""
    from study.errors import StudyError
    from study.home import studies_root
    from study.reporting import find_store

    folder = studies_root(root)
    found = []
    for directory in {path.parent for path in folder.glob("*/*") if path.name in _SIGNS}:
        try:
            store = find_store(directory.name, None, root)
        except StudyError:  # a damaged study must not hide the others; `study status` tells of it
            continue
        if not _is_empty(store, directory):
            found.append((_last_change(directory), store))
    if not found:
        raise StudyError(f"{folder} holds no study that has been run")
    return [store for _, store in sorted(found, key=lambda f: (-f[0], f[1].name))]


def _is_empty(store: Store, directory: Path) -> bool:
    """Whether nothing was written yet to a store that is the study's own."""
    from study.tracking.local import is_local

    return is_local(store.uri) and not (directory / "mlflow.db").exists()


def _last_change(directory: Path) -> float:
    """When a study last wrote anything down."""
    signs = [directory / name for name in _SIGNS]
    return max(sign.stat().st_mtime for sign in signs if sign.exists())


def _say(elsewhere: list[Store]) -> None:
    """Which studies of the folder this is not about, and how to see them."""
    from study.tracking.address import is_database
    from study.tracking.redaction import redact

    for other in elsewhere:
        where = f"study ui {other.name}" if is_database(other.uri) else redact(other.uri)
        click.echo(f"{other.name}: has a store of its own  ({where})")


def _through_tunnel(cluster: Path, name: str | None, port: int, root: Path | None) -> int:
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
        return _wait()  # a tunnel that breaks is opened again


def _stop(*_: object) -> None:
    """As ctrl-C does; a process that a script starts in the background may ignore that."""
    raise KeyboardInterrupt


def _wait(address: str = "") -> int:
    """Until ctrl-C, or until nothing listens any more at the address of a server of ours."""
    from study.tracking.server import says_it_is_well

    try:
        while True:
            time.sleep(1.0)
            if address:
                says_it_is_well(address)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        return 0
    except ConnectionError:
        click.echo(f"study: the MLflow server at {address} has ended", err=True)
        return 1
