"""Terminal displays: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from study.runner.display import ProgressDisplay
from study.trials.job import Job, LossProgress
from study.utils.format import format_duration, format_score

if TYPE_CHECKING:
    from rich.table import Table


@contextlib.contextmanager
def open_display(title: str) -> Iterator[ProgressDisplay]:
    """Open the display that suits standard output."""
    if sys.stdout.isatty():
        with _BarDisplay(title) as bars:
            yield bars
    else:
        yield _LineDisplay(title)


class EtaEstimator:
    """Estimates the remaining time from the epochs done since the first trial started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start: tuple[float, int] | None = None

    def seconds_left(self, progress: Sequence[LossProgress]) -> float:
        """Return the estimated seconds to the end; NaN while nothing is known.

        Call it whenever there is progress: opening data and starting Ray do not count.
        """
        done = sum(p.epochs_done for p in progress)
        left = sum(p.epochs_planned for p in progress) - done
        if self._start is None and any(p.running for p in progress):
            self._start = (self._clock(), done)
        if left <= 0:
            return 0.0
        if self._start is None or done <= self._start[1]:
            return math.nan
        return (self._clock() - self._start[0]) * left / (done - self._start[1])


class _LineDisplay:
    """Prints a line when a trial ended, at most one every few seconds."""

    def __init__(self, title: str, *, every: float = 5.0) -> None:
        self._title, self._every = title, every
        self._last, self._ended = 0.0, -1
        self._eta = EtaEstimator()

    def show_message(self, text: str) -> None:
        print(f"{self._title}: {text}", flush=True)

    def show_warning(self, text: str) -> None:
        self.show_message(f"warning: {text}")

    def show_build_progress(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self._last >= self._every:
            self._last = now
            self.show_message(f"{what}: {done:,} of {total:,}")

    def show_progress(self, progress: Sequence[LossProgress], running: Mapping[str, Job]) -> None:
        left = format_duration(self._eta.seconds_left(progress))
        ended = sum(p.ended for p in progress)
        final = not running and ended != self._ended
        if not final and (ended == self._ended or time.monotonic() - self._last < self._every):
            return
        self._last, self._ended = time.monotonic(), ended
        planned = sum(p.planned for p in progress)
        parts = [f"{p.loss} {p.ended}/{p.planned} best {format_score(p.best)}" for p in progress]
        self.show_message(
            f"{ended}/{planned} trials, {len(running)} running, {left} left; " + "; ".join(parts)
        )


class _BarDisplay:
    """Shows a progress bar per loss, redrawn in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._eta = EtaEstimator()
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)

    def __enter__(self) -> _BarDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show_message(self, text: str) -> None:
        from rich.text import Text

        self._live.update(Text(f"{self._title}: {text} ...", style="dim"))

    def show_warning(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(f"{self._title}: warning: {text}", style="yellow"))

    def show_build_progress(self, what: str, done: int, total: int) -> None:
        self._live.update(render_build_progress(f"{self._title}: {what}", done, total))

    def show_progress(self, progress: Sequence[LossProgress], running: Mapping[str, Job]) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=None, padding=(0, 1), show_edge=False)
        for title, side in (
            ("loss", "left"),
            ("", "left"),
            ("trials", "right"),
            ("running", "right"),
            ("stopped", "right"),
            ("diverged", "right"),
            ("failed", "right"),
            ("best", "right"),
        ):
            table.add_column(title, justify=side)  # type: ignore[arg-type]
        for p in progress:
            bar = ProgressBar(total=max(p.epochs_planned, 1), completed=p.epochs_done, width=24)
            counts = [p.running, p.stopped, p.diverged, p.failed]
            cells = [str(n) if n else "" for n in counts]
            table.add_row(p.loss, bar, f"{p.ended}/{p.planned}", *cells, format_score(p.best))
        left = format_duration(self._eta.seconds_left(progress))
        table.caption = f"{self._title}: {len(running)} running, {left} left (ctrl-C stops cleanly)"
        table.caption_justify = "left"
        self._live.update(table)


def render_build_progress(what: str, done: int, total: int) -> Table:
    """Render one line: what is built, a bar, and how much of it is done."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(total, 1), completed=done, width=24)
    row.add_row(what, bar, f"{done:,} of {total:,}")
    return row
