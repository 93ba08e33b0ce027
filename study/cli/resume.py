"""`study resume`: go on with a study."""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import (
    address_option,
    cluster_option,
    report_option,
    root_option,
)


@click.command(help="Go on with a study after any interruption; nothing finished is lost.")
@click.argument("name")
@root_option
@address_option
@report_option
@cluster_option
def command(
    name: str, root: Path | None, address: str | None, report: bool, cluster: Path | None
) -> int:
    """Everything is in the study's directory: its plan, its record, its checkpoints."""
    if cluster is not None:
        from study.cluster.attach import refuse_local, start

        refuse_local(root=root, address=address)
        return start(cluster, name, ["resume", name, "--report" if report else "--no-report"])

    from study.home import find_study
    from study.plan import load_plan
    from study.running import execute

    home = find_study(name, root)
    return execute(home, load_plan(home.directory), address=address, report=report)
