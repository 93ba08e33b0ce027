"""Running a study for a person: start, show, report, say what to do next."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from search_spaces.space import Value
from study.checks import check_storage, check_tracking, open_data
from study.display import open_display
from study.errors import RayError, StudyError
from study.home import StudyHome, cache_dir, create_study
from study.jobs import Job
from study.plan import Plan
from study.tracking.watch import SLOW

GO_ON = "stopped; nothing finished is lost. Go on with: study resume {}"


def begin(home: StudyHome, plan: Plan, *, address: str | None = None) -> None:
    """Make the study's directory, once data and cluster are known to fit.

    Nothing is written before.
    """
    if address is not None:
        from study.tuning.session import check_cluster

        check_cluster(plan.file.resources, address)
    check_tracking(plan)  # one that is down is said when the study runs
    check_storage(plan)
    with open_display(plan.name) as display:
        bench = open_data(plan, cache_dir=cache_dir(), progress=display.building)
    for note in bench.notes:
        print(f"{plan.name}: note: {note}")
    create_study(home, plan)
    for line in plan.left_out():
        print(f"note: {line}", flush=True)


def execute(
    home: StudyHome,
    plan: Plan,
    *,
    requests: Sequence[Job] = (),
    search: bool = True,
    address: str | None = None,
    report: bool = True,
) -> int:
    """Run until done or interrupted, then make the report; gives the exit code."""
    try:
        return _execute(
            home, plan, requests=requests, search=search, address=address, report=report
        )
    except KeyboardInterrupt:  # before trials run, or while the report is made
        print(GO_ON.format(home.name))
        return 130
    except RayError as error:
        print(f"study: {error}: {GO_ON.format(home.name)}", file=sys.stderr)
        return 1


def _execute(
    home: StudyHome,
    plan: Plan,
    *,
    requests: Sequence[Job],
    search: bool,
    address: str | None,
    report: bool,
) -> int:
    from study.reporting import show_results
    from study.tuning.run import run

    with open_display(plan.name) as display:
        summary = run(
            home,
            plan,
            requests=requests,
            search=search,
            address=address,
            report=report,
            tick=display.show,
            say=display.say,
            building=display.building,
            on_death=partial(_end_with_ray, home.name),
            warn=display.warn,
        )
        display.show(summary.progress, {})
    if not summary.tracked:
        print(
            f"not everything reached MLflow ({summary.tracking_error or SLOW}); it waits in the "
            f"study's spool. Send it with: study resume {home.name}",
            file=sys.stderr,
        )
    if summary.refused:
        print(
            f"MLflow refused {summary.refused} record(s) for good; see "
            f"{home.spool / 'refused.jsonl'}",
            file=sys.stderr,
        )
    if summary.warnings:
        path = home.directory / "warnings.txt"
        print(f"{summary.warnings} warning(s); see {path}", file=sys.stderr)
    if summary.trouble:
        mend = f"mend it, then go on with: study resume {home.name}"
        print(f"study: {summary.trouble}; {mend}", file=sys.stderr)
        return 1
    if not summary.finished:
        print(GO_ON.format(home.name))
        return 130
    if summary.tracked:
        show_results(home.tracking_uri(plan), plan.name, home.report)
    failed = sum(p.failed for p in summary.progress)
    if failed:
        print(f"{failed} trial(s) failed; see {home.directory / 'errors'}", file=sys.stderr)
    return 1 if failed or summary.refused or not summary.tracked else 0


def _end_with_ray(name: str, reason: str) -> None:
    """Leave as after a power cut: Ray answers no more, and the record is in order at any moment."""
    print(f"\nstudy: {reason}: {GO_ON.format(name)}", file=sys.stderr, flush=True)
    os._exit(1)


def run_points(
    name: str, root: Path | None, points: pd.DataFrame, *, reason: str, address: str | None
) -> int:
    """Run the points that an analysis asks for.

    Those that read the test classes wait until the search has ended; the others run.

    Raises:
        StudyError: The study was imported, so nothing says how to run its trials; or all of them
            would have to wait.
    """
    from study.home import find_study, studies_root
    from study.plan import PLAN_FILE, load_plan
    from study.requests import jobs_from_points

    if (studies_root(root) / name).is_dir() and not (
        studies_root(root) / name / PLAN_FILE
    ).exists():
        raise StudyError(f"{name} was imported: run these trials where its others ran")
    home = find_study(name, root)
    plan = load_plan(home.directory)
    points, waiting = runnable(home, plan, points)
    if waiting:
        print(f"study: {waiting}", file=sys.stderr)
    jobs = jobs_from_points(plan, points, reason=reason)
    return execute(home, plan, requests=jobs, search=False, address=address)


def runnable(home: StudyHome, plan: Plan, points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The points that may run now, and in words what has to wait (empty: nothing).

    Raises:
        StudyError: None may.
    """
    tested = points["origin"] == "confirm"
    if not tested.any() or search_is_finished(home, plan):
        return points, ""
    if tested.all():
        need_finished_search(home, plan)
    claims = ", ".join(dict.fromkeys(str(why) for why in points.loc[tested, "why"]))
    words = (
        f"the search of {home.name} is not finished: {int(tested.sum())} trials on test classes "
        f"wait ({claims}). Once it is, after study resume {home.name}, ask again"
    )
    return points[~tested], words


def need_finished_search(home: StudyHome, plan: Plan) -> None:
    """Test scores must not be there while points are still being chosen.

    Raises:
        StudyError: The search is not finished.
    """
    if not search_is_finished(home, plan):
        raise StudyError(
            f"the search of {home.name} is not finished; first: study resume {home.name}"
        )


def search_is_finished(home: StudyHome, plan: Plan) -> bool:
    """Whether no point is still to be chosen."""
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    return Ledger(plan, Record(home.directory, plan.spaces)).search_is_finished()


def incumbents(home: StudyHome, plan: Plan) -> dict[str, dict[str, Value]]:
    """The best finished point of each loss that has one."""
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    ledger = Ledger(plan, Record(home.directory, plan.spaces), search=False)
    best = {loss: ledger.incumbent(loss) for loss in plan.losses}
    return {loss: dict(job.values) for loss, job in best.items() if job is not None}
