"""`study confirm`: score the best and the published points on the test classes."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import address_option, cluster_option, root_option


@click.command(
    help="Train the best and the published point of each loss on all training classes with fresh "
    "seeds, and score them on the test classes after the last epoch."
)
@click.argument("name")
@root_option
@address_option
@cluster_option
def confirm_command(name: str, root: Path | None, address: str | None, cluster: Path | None) -> int:
    """Request the confirmations and run those that are missing."""
    if cluster is not None:
        from study.cluster.client import reject_local_options, submit_command

        reject_local_options(root=root, address=address)
        return submit_command(cluster, name, ["confirm", name])

    from study.cli.execute import run_and_print
    from study.config.plan import load_plan
    from study.directory import find_study
    from study.runner.points import find_incumbents, require_finished_search
    from study.search.requests import make_confirm_jobs

    study_dir = find_study(name, root)
    plan = load_plan(study_dir.path)
    require_finished_search(study_dir, plan)
    jobs = make_confirm_jobs(plan, find_incumbents(study_dir, plan))
    code = run_and_print(study_dir, plan, requests=jobs, search=False, address=address)
    if code == 0:
        from study.tracking.model_registry import serve_command

        if serve := serve_command(study_dir.tracking_uri(plan), plan.name):
            click.echo(f"its winner:   {serve}")
    return code
