"""`study confirm`: how do the chosen points do on the test classes?"""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import address_option, cluster_option, root_option


@click.command(
    help="Train the best and the published point of each loss on all training classes with fresh "
    "seeds and score them on the test classes, after the last epoch."
)
@click.argument("name")
@root_option
@address_option
@cluster_option
def command(name: str, root: Path | None, address: str | None, cluster: Path | None) -> int:
    """Ask for the confirmations and run those that are not there yet."""
    if cluster is not None:
        from study.cluster.attach import refuse_local, start

        refuse_local(root=root, address=address)
        return start(cluster, name, ["confirm", name])

    from study.home import find_study
    from study.plan import load_plan
    from study.requests import confirm_jobs
    from study.running import execute, incumbents, need_finished_search

    home = find_study(name, root)
    plan = load_plan(home.directory)
    need_finished_search(home, plan)
    jobs = confirm_jobs(plan, incumbents(home, plan))
    code = execute(home, plan, requests=jobs, search=False, address=address)
    if code == 0:
        from study.tracking.model import serve_command

        if serve := serve_command(home.tracking_uri(plan), plan.name):
            click.echo(f"its winner:   {serve}")
    return code
