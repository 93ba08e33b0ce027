"""`study extend`: go on searching a finished study."""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import address_option, cluster_option, root_option


@click.command(help="Go on searching a finished study; Sobol and sampler continue where they were.")
@click.argument("name")
@click.option("--trials", type=click.IntRange(min=1), required=True, help="More points per loss.")
@root_option
@address_option
@cluster_option
def command(
    name: str, trials: int, root: Path | None, address: str | None, cluster: Path | None
) -> int:
    """Add a stage to the plan, then go on."""
    if cluster is not None:
        from study.cluster.attach import refuse_local, start

        refuse_local(root=root, address=address)
        return start(cluster, name, ["extend", name, "--trials", str(trials)])

    from study.errors import StudyError
    from study.home import find_study
    from study.plan import load_plan, save_plan
    from study.running import execute
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    home = find_study(name, root)
    plan = load_plan(home.directory)
    with home.locked():
        if not Ledger(plan, Record(home.directory, plan.spaces)).is_finished():
            raise StudyError(f"study {name} is not finished; go on with: study resume {name}")
        plan = plan.extended(trials)
        save_plan(plan, home.directory)
    return execute(home, plan, address=address)
