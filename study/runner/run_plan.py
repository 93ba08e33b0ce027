"""Running a plan from Python: create the study's directory or resume it, then run."""

from __future__ import annotations

from pathlib import Path

from study.config.plan import PLAN_FILE, Plan, load_plan
from study.directory import StudyDirectory, create_study_directory
from study.errors import StudyError
from study.runner.display import NullDisplay, ProgressDisplay
from study.runner.preflight import check_storage, check_tracking, open_data
from study.runner.run import RunOptions, RunSummary, run
from study.utils.paths import cache_dir, studies_root


def run_plan(
    plan: Plan,
    *,
    root: Path | str | None = None,
    display: ProgressDisplay | None = None,
    options: RunOptions | None = None,
) -> RunSummary:
    """Run a plan until it is done; resume the study if it exists.

    Args:
        plan: What to run.
        root: Folder of all studies; None for the default.
        display: Shows messages, warnings and progress; None shows nothing.
        options: How to run; see `RunOptions`.

    Raises:
        StudyError: The study exists with another plan, or the data, storage or cluster do not fit.
    """
    study_dir = StudyDirectory(studies_root(None if root is None else Path(root)) / plan.name)
    if (study_dir.path / PLAN_FILE).exists():
        stored = load_plan(study_dir.path)
        file = plan.file.with_stored_defaults(stored.file)
        if stored.file != file or stored.spaces != plan.spaces:
            raise StudyError(
                f"study {plan.name} exists in {study_dir.path.parent} with another plan; give the "
                "plan another name, or extend the study with `study extend`"
            )
        return run(study_dir, stored, display=display, options=options)
    check_tracking(plan)
    check_storage(plan)
    progress = (display or NullDisplay()).show_build_progress
    training = open_data(plan, cache_dir=cache_dir(), progress=progress)
    create_study_directory(study_dir, plan)
    return run(study_dir, plan, training=training, display=display, options=options)
