"""`study stop`: stop a study that runs in another terminal or on a cluster."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from study.cli.options import cluster_option, root_option
from study.errors import StudyError

STOP_TIMEOUT_SECONDS = 120.0


@click.command(
    help="Stop a study that runs in another terminal or on a cluster; `study resume` continues it."
)
@click.argument("name")
@root_option
@cluster_option
def stop_command(name: str, root: Path | None, cluster: Path | None) -> int:
    """Signal the study's process to stop, as ctrl-C does, and wait until it has stopped."""
    from study.directory import find_study

    if cluster is not None:
        from study.cluster.client import reject_local_options, run_remote_command

        reject_local_options(root=root)
        return run_remote_command(cluster, ["stop", name])
    study_dir = find_study(name, root)
    process = study_dir.lock_holder_pid()
    if process is None:
        raise StudyError(f"study {name} is not running on this machine")
    os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while study_dir.is_running():
        if time.monotonic() > deadline:
            raise StudyError(
                f"process {process} of study {name} did not stop within "
                f"{STOP_TIMEOUT_SECONDS:.0f} s"
            )
        time.sleep(0.2)
    click.echo(f"stopped; finished trials are kept. Continue with: study resume {name}")
    return 0
