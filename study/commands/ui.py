"""`study ui`: MLflow's own UI on a study's store."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from study.commands.options import root_option


@click.command(help="Start MLflow's UI on the study's store (loopback only); ctrl-C stops it.")
@click.argument("name", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@root_option
def command(name: str | None, port: int, root: Path | None) -> None:
    """Serve until interrupted. Without a name: the study that ran last."""
    from study.errors import StudyError
    from study.home import StudyHome, find_study, studies_root
    from study.plan import PLAN_FILE, load_plan
    from study.tracking.local import relocate
    from study.tracking.server import serve

    if name is None:
        plans = sorted(studies_root(root).glob(f"*/{PLAN_FILE}"), key=lambda p: p.stat().st_mtime)
        if not plans:
            raise StudyError(f"{studies_root(root)} holds no studies")
        home = StudyHome(plans[-1].parent)
    else:
        home = find_study(name, root)
    plan = load_plan(home.directory)
    if plan.file.tracking.uri:
        click.echo(f"{home.name} is kept on {plan.file.tracking.uri}; open that in a browser")
        return
    relocate(home.directory)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    uri, artifacts = home.tracking_uri(plan), home.artifact_root(plan)
    click.echo("starting MLflow ...", err=True)
    with serve(uri, port=port, artifact_root=artifacts) as address:
        click.echo(f"{home.name}: {address}  (ctrl-C stops)")
        try:
            signal.pause()
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
