"""Display that records what it shows, and the contract of every display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from study.runner.display import ProgressDisplay
from study.trials.job import Job, LossProgress


class RecordingDisplay:
    """Display that stores messages, warnings, build progress and study progress in lists."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.warnings: list[str] = []
        self.builds: list[tuple[str, int, int]] = []
        self.progress: list[Sequence[LossProgress]] = []

    def show_message(self, text: str) -> None:
        self.messages.append(text)

    def show_warning(self, text: str) -> None:
        self.warnings.append(text)

    def show_build_progress(self, what: str, done: int, total: int) -> None:
        self.builds.append((what, done, total))

    def show_progress(self, progress: Sequence[LossProgress], running: Mapping[str, Job]) -> None:
        self.progress.append(progress)


def make_progress(**changes: object) -> LossProgress:
    """Return the progress of one loss in the middle of a study."""
    fields = {
        "loss": "triplet",
        "planned": 10,
        "ended": 4,
        "running": 2,
        "stopped": 1,
        "diverged": 1,
        "failed": 0,
        "best": 0.5,
        "best_trial": "triplet-0003",
        "epochs_done": 40,
        "epochs_planned": 100,
    }
    return LossProgress(**{**fields, **changes})  # type: ignore[arg-type]


class DisplayContract:
    """Tests of a `ProgressDisplay`; a subclass defines the fixture `display`."""

    def test_messages_and_warnings_may_hold_any_text(self, display: ProgressDisplay) -> None:
        for text in ("opening data", "", "[bold]no markup[/bold] 50 % {x}", "a\nb"):
            display.show_message(text)
            display.show_warning(text)

    def test_builds_may_be_empty_or_complete(self, display: ProgressDisplay) -> None:
        for done, total in ((0, 10), (10, 10), (0, 0)):
            display.show_build_progress("decoding images", done, total)

    def test_progress_may_lack_scores_and_jobs(self, display: ProgressDisplay) -> None:
        job = Job("triplet-0001", "triplet", 1, "sobol", {"margin": 0.1}, seed=0)
        display.show_progress([], {})
        display.show_progress([make_progress()], {job.trial: job})
        display.show_progress([make_progress(best=float("nan"), ended=0, epochs_done=0)], {})
