"""`study status`: how far a study is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.commands.options import json_option, print_json, root_option

if TYPE_CHECKING:
    from study.home import StudyHome


@click.command(help="How far a study is, from its record; works while it runs.")
@click.argument("name", required=False)
@json_option
@root_option
def command(name: str | None, as_json: bool, root: Path | None) -> None:
    """Without a name: all studies."""
    from study.home import find_study, studies_root
    from study.plan import PLAN_FILE

    names = [name] if name else [p.parent.name for p in studies_root(root).glob(f"*/{PLAN_FILE}")]
    reports = [_report(find_study(n, root)) for n in sorted(names)]
    if as_json:
        print_json(reports[0] if name else reports)
        return
    if not reports:
        click.echo(f"no studies in {studies_root(root)}")
    for report in reports:
        _print(report)


def _report(home: StudyHome) -> dict[str, Any]:
    from dataclasses import asdict

    from study.plan import load_plan
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    plan = load_plan(home.directory)
    ledger = Ledger(plan, Record(home.directory, plan.spaces))
    running = home.is_running()
    state = "running" if running else "finished" if ledger.is_finished() else "stopped"
    return {
        "study": plan.name,
        "state": state,
        "directory": str(home.directory),
        "objective": plan.file.protocol.objective,
        "losses": [asdict(p) for p in ledger.progress()],
    }


def _print(report: dict[str, Any]) -> None:
    from study.display import number

    click.echo(f"{report['study']}: {report['state']}  ({report['directory']})")
    width = max(len(p["loss"]) for p in report["losses"])
    for p in report["losses"]:
        counts = ", ".join(f"{p[k]} {k}" for k in ("stopped", "diverged", "failed") if p[k])
        best = f"best {report['objective']} {number(p['best'])}"
        trial = f" ({p['best_trial']})" if p["best_trial"] else ""
        tail = f"; {counts}" if counts else ""
        click.echo(
            f"  {p['loss']:<{width}}  {p['ended']}/{p['planned']} trials, {best}{trial}{tail}"
        )
    if report["state"] == "stopped":
        click.echo(f"go on with: study resume {report['study']}")
