"""What a person sees while a study runs: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from study.jobs import Job, Progress

if TYPE_CHECKING:
    from rich.table import Table


class Display(Protocol):
    """Shows what is going on."""

    def say(self, text: str) -> None:
        """One line of news."""

    def warn(self, text: str) -> None:
        """One line that stays to be read."""

    def building(self, what: str, done: int, total: int) -> None:
        """Progress of something built before trials run."""

    def show(self, progress: Sequence[Progress], running: Mapping[str, Job]) -> None:
        """Progress of the study."""


@contextlib.contextmanager
def open_display(title: str) -> Iterator[Display]:
    """The display that suits standard output."""
    if sys.stdout.isatty():
        with _Bars(title) as bars:
            yield bars
    else:
        yield _Lines(title)


class Pace:
    """How long will it take? Epochs done since the first trial ran, against the clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start: tuple[float, int] | None = None

    def seconds_left(self, progress: Sequence[Progress]) -> float:
        """Estimated seconds to the end; NaN while nothing is known.

        To be called whenever there is progress: opening data and starting Ray are not part of it.
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


class _Lines:
    """A line when something ended, at most one every few seconds."""

    def __init__(self, title: str, *, every: float = 5.0) -> None:
        self._title, self._every = title, every
        self._last, self._ended = 0.0, -1
        self._pace = Pace()

    def say(self, text: str) -> None:
        print(f"{self._title}: {text}", flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    def building(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self._last >= self._every:
            self._last = now
            self.say(f"{what}: {done:,} of {total:,}")

    def show(self, progress: Sequence[Progress], running: Mapping[str, Job]) -> None:
        left = clock(self._pace.seconds_left(progress))
        ended = sum(p.ended for p in progress)
        final = not running and ended != self._ended
        if not final and (ended == self._ended or time.monotonic() - self._last < self._every):
            return
        self._last, self._ended = time.monotonic(), ended
        planned = sum(p.planned for p in progress)
        parts = [f"{p.loss} {p.ended}/{p.planned} best {number(p.best)}" for p in progress]
        self.say(
            f"{ended}/{planned} trials, {len(running)} running, {left} left; " + "; ".join(parts)
        )


class _Bars:
    """A bar per loss, redrawn in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._pace = Pace()
        self._news = ""
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)

    def __enter__(self) -> _Bars:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def say(self, text: str) -> None:
        from rich.text import Text

        self._news = text
        self._live.update(Text(f"{self._title}: {text} ...", style="dim"))

    def warn(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(f"{self._title}: warning: {text}", style="yellow"))

    def building(self, what: str, done: int, total: int) -> None:
        self._live.update(building_bar(f"{self._title}: {what}", done, total))

    def show(self, progress: Sequence[Progress], running: Mapping[str, Job]) -> None:
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
            table.add_row(p.loss, bar, f"{p.ended}/{p.planned}", *cells, number(p.best))
        left = clock(self._pace.seconds_left(progress))
        table.caption = f"{self._title}: {len(running)} running, {left} left (ctrl-C stops cleanly)"
        table.caption_justify = "left"
        self._live.update(table)


def building_bar(what: str, done: int, total: int) -> Table:
    """One line: what is built, a bar, how much of how much."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(total, 1), completed=done, width=24)
    row.add_row(what, bar, f"{done:,} of {total:,}")
    return row


def number(value: float) -> str:
    """A score for people; a dash when there is none."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def clock(seconds: float) -> str:
    """A duration for people."""
    if math.isnan(seconds):
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
