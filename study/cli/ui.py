"""`study ui`: serve MLflow's UI on the tracking store of a study."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from study.cli.options import cluster_option, root_option

if TYPE_CHECKING:
    from study.results import ResultStore

_STUDY_FILE_NAMES = ("plan.json", "optuna.journal", "mlflow.db")


@click.command(
    help="Start MLflow's UI on the study's store (loopback only), or open a tunnel to the UI of a "
    "cluster; ctrl-C stops it."
)
@click.argument("name", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port to listen on (default: a free one).",
)
@root_option
@cluster_option
def ui_command(name: str | None, port: int, root: Path | None, cluster: Path | None) -> int:
    """Serve until interrupted; without a name, the store of the study that ran last."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed
        signal.signal(number, _raise_keyboard_interrupt)
    if cluster is not None:
        return _open_cluster_ui(cluster, name, port, root)
    from study.results import find_store
    from study.utils.redaction import redact
    from study.utils.tracking_uri import is_database

    if name is not None:
        store, others = find_store(name, None, root), []
    else:
        store, *others = _list_recent_stores(root)
    same_store = [other for other in others if other.uri == store.uri]
    other_stores = [other for other in others if other.uri != store.uri]
    if not is_database(store.uri):
        click.echo(f"{store.name} is stored on {redact(store.uri)}; open this address in a browser")
        _print_other_stores(other_stores)
        return 0
    return _serve_ui(store, port, same_store, other_stores)


def _serve_ui(
    store: ResultStore, port: int, same_store: list[ResultStore], other_stores: list[ResultStore]
) -> int:
    from study.directory import default_artifact_root, is_sqlite_uri
    from study.errors import StudyError
    from study.tracking.reader import study_path
    from study.tracking.sqlite_store import repair_artifact_paths
    from study.tracking.ui_server import run_mlflow_server

    directory = store.report.parent
    if is_sqlite_uri(store.uri):
        if not (directory / "mlflow.db").exists():
            raise StudyError(f"{store.name} has no MLflow store yet; run the study first")
        repair_artifact_paths(directory)
    artifacts = default_artifact_root(directory)
    click.echo("starting MLflow ...", err=True)
    with run_mlflow_server(store.uri, port=port, artifact_root=artifacts) as address:
        click.echo(f"{store.name}: {address}{study_path(store.uri, store.name)}  (ctrl-C stops)")
        for other in same_store:
            with contextlib.suppress(StudyError):  # the study has never run
                click.echo(f"{other.name}: {address}{study_path(other.uri, other.name)}")
        _print_other_stores(other_stores)
        return _wait_for_interrupt(address)


def _list_recent_stores(root: Path | None) -> list[ResultStore]:
    """Return the stores of all studies in the folder, the one that ran last first."""
    from study.errors import StudyError
    from study.results import find_store
    from study.utils.paths import studies_root

    folder = studies_root(root)
    stores = []
    for directory in {path.parent for path in folder.glob("*/*") if path.name in _STUDY_FILE_NAMES}:
        try:
            store = find_store(directory.name, None, root)
        except StudyError:  # `study status` shows damaged studies
            continue
        if not _is_store_empty(store, directory):
            stores.append((_last_modified_time(directory), store))
    if not stores:
        raise StudyError(f"no study in {folder} has been run")
    return [store for _, store in sorted(stores, key=lambda s: (-s[0], s[1].name))]


def _is_store_empty(store: ResultStore, directory: Path) -> bool:
    """Whether the study's own store has not been created yet."""
    from study.directory import is_sqlite_uri

    return is_sqlite_uri(store.uri) and not (directory / "mlflow.db").exists()


def _last_modified_time(directory: Path) -> float:
    """Return the time at which a study last wrote to one of its files."""
    paths = [directory / name for name in _STUDY_FILE_NAMES]
    return max(path.stat().st_mtime for path in paths if path.exists())


def _print_other_stores(other_stores: list[ResultStore]) -> None:
    """Print the studies of the folder that this UI does not show, and where to see them."""
    from study.utils.redaction import redact
    from study.utils.tracking_uri import is_database

    for other in other_stores:
        where = f"study ui {other.name}" if is_database(other.uri) else redact(other.uri)
        click.echo(f"{other.name}: in another store  ({where})")


def _open_cluster_ui(cluster: Path, name: str | None, port: int, root: Path | None) -> int:
    """Print the address of the cluster's MLflow server; without a name, of the one on the head.

    A server that listens on the head's loopback is reached through a tunnel. For a database,
    MLflow's server is started on this machine, on a tunnel to the database.
    """
    from study.cluster.client import open_stores, reject_local_options
    from study.cluster.head import find_head
    from study.tracking.reader import study_path
    from study.tracking.ui_server import run_mlflow_server
    from study.utils.redaction import redact
    from study.utils.tracking_uri import is_database

    reject_local_options(root=root)
    with contextlib.ExitStack() as stack:
        if name is None:
            head = find_head(cluster)
            address = stack.enter_context(head.open_mlflow_tunnel(port))
            click.echo(f"{head.cluster}: {address}  (ctrl-C stops)")
        else:
            (address,) = stack.enter_context(open_stores(cluster, [name], port))
            path = study_path(address, name)
            if is_database(address):
                click.echo("starting MLflow ...", err=True)
                address = stack.enter_context(run_mlflow_server(address, port=port))
            click.echo(f"{name}: {redact(address)}{path}  (ctrl-C stops)")
        return _wait_for_interrupt()  # a broken tunnel is opened again


def _raise_keyboard_interrupt(*_: object) -> None:
    """Stop as ctrl-C does; SIGINT itself may be ignored in a background process of a script."""
    raise KeyboardInterrupt


def _wait_for_interrupt(address: str = "") -> int:
    """Wait for ctrl-C, or until the server at `address` (if given) no longer listens."""
    from study.tracking.ui_server import is_healthy

    try:
        while True:
            time.sleep(1.0)
            if address:
                is_healthy(address)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        return 0
    except ConnectionError:
        click.echo(f"study: the MLflow server at {address} has stopped", err=True)
        return 1
