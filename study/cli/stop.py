"""`study stop`: stop a study that runs elsewhere."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from study.commands.options import cluster_option, root_option
from study.errors import StudyError

WAIT_SECONDS = 120.0


@click.command(
    help="Stop a study that runs in another terminal or on a cluster; `study resume` goes on."
)
@click.argument("name")
@root_option
@cluster_option
def command(name: str, root: Path | None, cluster: Path | None) -> int:
    """Ask its process to stop, as ctrl-C does, and wait until it has."""
    from study.home import find_study

    if cluster is not None:
        from study.cluster.attach import refuse_local, show

        refuse_local(root=root)
        return show(cluster, ["stop", name])
    home = find_study(name, root)
    process = home.holder()
    if process is None:
        raise StudyError(f"study {name} is not running on this machine")
    os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + WAIT_SECONDS
    while home.is_running():
        if time.monotonic() > deadline:
            raise StudyError(f"process {process} of study {name} does not stop")
        time.sleep(0.2)
    click.echo(f"stopped; nothing finished is lost. Go on with: study resume {name}")
    return 0
