"""Requested points: which points of an analysis may run now, and the best point of each loss."""

from __future__ import annotations

import pandas as pd

from search_spaces.space import ParamValue
from study.config.plan import Plan
from study.directory import StudyDirectory
from study.errors import StudyError
from study.search.job_scheduler import JobScheduler
from study.search.journal import StudyJournal


def split_runnable_points(
    study_dir: StudyDirectory, plan: Plan, points: pd.DataFrame
) -> tuple[pd.DataFrame, str]:
    """Return the points that may run now, and a message about the others (empty if none).

    Points that are scored on test classes wait until the search is finished.

    Raises:
        StudyError: No point may run now.
    """
    on_test_classes = points["origin"] == "confirm"
    if not on_test_classes.any() or search_is_finished(study_dir, plan):
        return points, ""
    if on_test_classes.all():
        require_finished_search(study_dir, plan)
    reasons = ", ".join(dict.fromkeys(str(why) for why in points.loc[on_test_classes, "why"]))
    message = (
        f"the search of {study_dir.name} is not finished, so {int(on_test_classes.sum())} trials "
        f"on test classes are not run ({reasons}); run `study resume {study_dir.name}`, then this "
        "command again"
    )
    return points[~on_test_classes], message


def require_finished_search(study_dir: StudyDirectory, plan: Plan) -> None:
    """Raise unless the search is finished: test scores must not exist while points are chosen.

    Raises:
        StudyError: The search is not finished.
    """
    if not search_is_finished(study_dir, plan):
        raise StudyError(
            f"the search of {study_dir.name} is not finished; first run: "
            f"study resume {study_dir.name}"
        )


def search_is_finished(study_dir: StudyDirectory, plan: Plan) -> bool:
    """Whether every point of the search has been chosen and run."""
    return JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces)).is_search_finished()


def find_incumbents(study_dir: StudyDirectory, plan: Plan) -> dict[str, dict[str, ParamValue]]:
    """Return the best finished point of each loss that has one."""
    scheduler = JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces), search=False)
    best = {loss: scheduler.get_incumbent(loss) for loss in plan.losses}
    return {loss: dict(job.params) for loss, job in best.items() if job is not None}
