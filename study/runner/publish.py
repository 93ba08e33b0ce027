"""Publishing: galleries, report and progress notes of a study, stored in MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from study.config.plan import Plan
from study.directory import StudyDirectory
from study.runner.context import RunContext
from study.runner.trained_networks import CHECKPOINT_UNREADABLE_MESSAGE, load_trained_weights
from study.runner.winner import register_winner
from study.search.job_scheduler import JobScheduler
from study.tracking.tracker import Tracker
from study.trials.job import LossProgress
from study.utils.files import safe_filename
from study.utils.format import format_score
from trainables.training.restored_network import embed_validation_items
from trainables.training.tasks import build_fold_tasks

if TYPE_CHECKING:
    from study.analyses.findings import StudyFindings

TRACKER_FLUSH_SECONDS = 60.0
_FIGURE_SUFFIXES = (".png", ".svg")


def publish_results(
    run_context: RunContext, gallery_vectors: Mapping[str, NDArray[np.float32]]
) -> StudyFindings | None:
    """Draw the galleries, make the report from the store, and store both there.

    A gallery or model whose checkpoint is gone is left out with a warning.

    Args:
        run_context: The run.
        gallery_vectors: Embeddings of the validation images by loss, as far as they are computed.

    Returns:
        The findings in the report; None when the tracking server is unreachable (`study report`
        makes the report later).
    """
    study_dir, plan, display = run_context.study_dir, run_context.plan, run_context.display
    if run_context.training.dataset.train.kind == "images":
        display.show_message("drawing galleries")
        for loss in plan.losses:
            _log_gallery(run_context, loss, gallery_vectors.get(loss))
    if not run_context.tracker.flush(TRACKER_FLUSH_SECONDS):
        return None
    # These imports take seconds, which the start of a study does not need to spend.
    from study.analyses.findings import analyse_study
    from study.report.summary import leading_loss
    from study.report.writer import write_findings
    from study.tracking.reader import read_table

    display.show_message("making the report")
    findings = analyse_study(read_table(study_dir.tracking_uri(plan), plan.name))
    write_findings(findings, study_dir.report_dir)
    log_report(study_dir, plan, run_context.tracker)
    try:
        register_winner(run_context, findings.table, leading_loss(findings))
    except Exception as error:  # exporting runs the backbone's own code
        reason = (str(error).strip().splitlines() or [""])[0]
        display.show_warning(
            f"the winner's model is not registered: {type(error).__name__}: {reason[:300]}"
        )
    return findings


def log_report(study_dir: StudyDirectory, plan: Plan, tracker: Tracker) -> None:
    """Store the written report with the study, and each loss's figures with the loss."""
    tracker.log_artifact(study_dir.report_dir, to="study", folder="report")
    folder = study_dir.report_dir / "figures"
    figures = [f for f in sorted(folder.glob("*")) if f.suffix in _FIGURE_SUFFIXES]
    for loss in plan.losses:
        names = [
            f.name for f in figures if f.stem == safe_filename(f"{f.stem.split('-')[0]}-{loss}")
        ]
        tracker.log_artifact(folder, to=loss, folder="figures", only=names)


def log_progress_note(
    study_dir: StudyDirectory, plan: Plan, tracker: Tracker, scheduler: JobScheduler
) -> None:
    """Write the state of the study into the note of its MLflow run."""
    has_report = (study_dir.report_dir / "index.html").exists()
    progress = scheduler.get_progress(include_search=True)
    tracker.set_note(format_progress_note(plan, progress, has_report=has_report))


def format_progress_note(
    plan: Plan, progress: list[LossProgress], *, has_report: bool = True
) -> str:
    """Describe the study and its progress in Markdown."""
    ended, planned = sum(p.ended for p in progress), sum(p.planned for p in progress)
    lines = [
        f"**{plan.name}**: {', '.join(plan.losses)} on {plan.file.data.name}, objective "
        f"{plan.file.protocol.objective} on validation classes. {ended} of {planned} trials ended.",
        "",
        "| loss | trials | best | of | stopped | diverged | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in sorted(progress, key=lambda p: -p.best if p.best == p.best else 1.0):
        counts = f"{p.stopped} | {p.diverged} | {p.failed}"
        best = f"{format_score(p.best)} | {p.best_trial}"
        lines.append(f"| {p.loss} | {p.ended}/{p.planned} | {best} | {counts} |")
    if has_report:
        lines += ["", "The report is among this run's artifacts: report/index.html."]
    return "\n".join(lines)


def _log_gallery(run_context: RunContext, loss: str, vectors: NDArray[np.float32] | None) -> None:
    """Draw what the best trial of a loss retrieves for a few validation queries."""
    plan, training = run_context.plan, run_context.training
    best = run_context.scheduler.get_incumbent(loss)
    if best is None:
        return
    if vectors is None:
        spec = run_context.build_trial_spec(best)
        weights = load_trained_weights(spec)
        if weights is None:
            reason = CHECKPOINT_UNREADABLE_MESSAGE.format(best.trial)
            run_context.display.show_warning(f"no gallery of {loss}: {reason}")
            return
        vectors = embed_validation_items(spec, training, weights)
    from trainables.retrieval.gallery import write_gallery

    path = run_context.study_dir.path / "galleries" / f"{loss}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{best.trial}: validation queries and what they find"
    # Trials of a frozen backbone train on features, which have the order of their images.
    images = build_fold_tasks(training.dataset, "validation", plan.file.protocol.folds)[0]
    write_gallery(
        path, images.evaluation, vectors, class_names=training.dataset.class_names, title=title
    )
    run_context.tracker.log_gallery(path, loss=loss, trial=best.trial)
