"""Execution of studies on the command line: display, messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from study.cli.display import open_display
from study.config.plan import Plan
from study.directory import StudyDirectory, create_study_directory
from study.errors import RayUnavailableError, StudyError
from study.runner.points import split_runnable_points
from study.runner.preflight import check_storage, check_tracking, open_data
from study.runner.warning_log import WARNINGS_FILE_NAME
from study.tracking.monitor import SLOW_STORE_REASON
from study.trials.job import Job
from study.utils.format import count_noun
from study.utils.paths import cache_dir

if TYPE_CHECKING:
    from study.runner.run import RunSummary
    from trainables.training.context import TrainingContext

RESUME_MESSAGE = "stopped; finished trials are kept. Continue with: study resume {}"


def check_and_create_study(
    study_dir: StudyDirectory, plan: Plan, *, address: str | None = None
) -> TrainingContext:
    """Check data, storage and cluster, then create the study's directory.

    Nothing is written before the checks pass.

    Returns:
        The open data and backbone, for `run_and_print`.
    """
    if address is not None:
        from study.runner.ray_session import check_cluster

        check_cluster(plan.file.resources, address)
    check_tracking(plan)  # the run itself warns about a store that is down
    check_storage(plan)
    with open_display(plan.name) as display:
        context = open_data(plan, cache_dir=cache_dir(), progress=display.show_build_progress)
    for note in context.quality_notes:
        print(f"{plan.name}: note: {note}")
    create_study_directory(study_dir, plan)
    for line in plan.describe_excluded_points():
        print(f"note: {line}", flush=True)
    return context


def run_and_print(
    study_dir: StudyDirectory,
    plan: Plan,
    *,
    requests: Sequence[Job] = (),
    search: bool = True,
    training: TrainingContext | None = None,
    address: str | None = None,
    report: bool = True,
) -> int:
    """Run until done or interrupted, make the report and return the exit code.

    Args:
        study_dir: The study's directory.
        plan: What to run.
        requests: Requested trainings.
        search: Whether to continue the search.
        training: Data and backbone, if they are open already.
        address: Address of a Ray cluster; None runs on this machine.
        report: Whether to make the report.
    """
    from study.runner.run import RunOptions, run

    options = RunOptions(
        address=address,
        report=report,
        on_ray_failure=partial(_exit_after_ray_failure, study_dir.name),
    )
    try:
        with open_display(plan.name) as display:
            summary = run(
                study_dir,
                plan,
                requests=requests,
                search=search,
                training=training,
                display=display,
                options=options,
            )
            display.show_progress(summary.progress, {})
        return _print_summary(study_dir, plan, summary)
    except KeyboardInterrupt:  # before trials run, or while the report is made
        print(RESUME_MESSAGE.format(study_dir.name))
        return 130
    except RayUnavailableError as error:
        print(f"study: {error}: {RESUME_MESSAGE.format(study_dir.name)}", file=sys.stderr)
        return 1


def _print_summary(study_dir: StudyDirectory, plan: Plan, summary: RunSummary) -> int:
    """Print how a run ended and return the exit code."""
    from study.cli.report_text import print_findings, print_results

    resume = f"study resume {study_dir.name}"
    if not summary.is_tracked:
        print(
            f"MLflow lacks some records ({summary.tracking_error or SLOW_STORE_REASON}); they "
            f"wait in the study's spool. Send them with: {resume}",
            file=sys.stderr,
        )
    if summary.n_refused_records:
        print(
            f"MLflow refused {count_noun(summary.n_refused_records, 'record')} permanently; see "
            f"{study_dir.spool_dir / 'refused.jsonl'}",
            file=sys.stderr,
        )
    if summary.n_warnings:
        path = study_dir.path / WARNINGS_FILE_NAME
        print(f"{count_noun(summary.n_warnings, 'warning')}; see {path}", file=sys.stderr)
    if summary.stop_reason:
        print(f"study: {summary.stop_reason}; fix the problem, then run: {resume}", file=sys.stderr)
        return 1
    if not summary.is_finished:
        print(RESUME_MESSAGE.format(study_dir.name))
        return 130
    uri = study_dir.tracking_uri(plan)
    if summary.is_tracked and summary.findings is not None:
        print_findings(summary.findings, uri, study_dir.report_dir)
    elif summary.is_tracked:
        print_results(uri, plan.name, study_dir.report_dir)
    failed = sum(p.failed for p in summary.progress)
    if failed:
        errors = study_dir.errors_dir
        print(f"{count_noun(failed, 'trial')} failed; see {errors}", file=sys.stderr)
    return 1 if failed or summary.n_refused_records or not summary.is_tracked else 0


def _exit_after_ray_failure(name: str, reason: str) -> None:
    """Exit at once: Ray does not answer any more, and the journal is consistent at any moment."""
    print(f"\nstudy: {reason}: {RESUME_MESSAGE.format(name)}", file=sys.stderr, flush=True)
    os._exit(1)


def run_suggested_trials(
    name: str, root: Path | None, points: pd.DataFrame, *, reason: str, address: str | None
) -> int:
    """Run the points that an analysis suggests.

    Points on test classes are not run before the search is finished.

    Raises:
        StudyError: The study was imported, so its trials cannot be run here; or no point may run
            now.
    """
    from study.config.plan import PLAN_FILE, load_plan
    from study.directory import find_study
    from study.search.requests import jobs_from_points
    from study.utils.paths import studies_root

    directory = studies_root(root) / name
    if directory.is_dir() and not (directory / PLAN_FILE).exists():
        raise StudyError(
            f"{name} was imported, so its trials cannot be run here; run them where the others ran"
        )
    study_dir = find_study(name, root)
    plan = load_plan(study_dir.path)
    points, message = split_runnable_points(study_dir, plan, points)
    if message:
        print(f"study: {message}", file=sys.stderr)
    jobs = jobs_from_points(plan, points, reason=reason)
    return run_and_print(study_dir, plan, requests=jobs, search=False, address=address)
