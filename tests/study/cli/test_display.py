"""Tests of the display of a running study: remaining time, lines and bars."""

from __future__ import annotations

import io
import math

import pytest

from study.cli.display import EtaEstimator, open_display, render_build_progress
from study.trials.job import LossProgress


def _progress(*, done: int, running: int) -> list[LossProgress]:
    return [
        LossProgress(
            loss="triplet",
            planned=10,
            ended=0,
            running=running,
            stopped=0,
            diverged=0,
            failed=0,
            best=math.nan,
            best_trial="",
            epochs_done=done,
            epochs_planned=100,
        )
    ]


def test_the_time_before_the_first_trial_is_not_counted() -> None:
    now = [0.0]
    estimator = EtaEstimator(clock=lambda: now[0])
    assert math.isnan(estimator.seconds_left(_progress(done=20, running=0)))
    now[0] = 60.0  # a minute until the first trial runs
    assert math.isnan(estimator.seconds_left(_progress(done=20, running=1)))
    now[0] = 70.0  # then 10 s for 5 epochs
    assert estimator.seconds_left(_progress(done=25, running=1)) == 10.0 * 75 / 5
    assert estimator.seconds_left(_progress(done=100, running=0)) == 0.0


def test_a_long_build_prints_its_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("study.cli.display.time.monotonic", lambda: now[0])
    with open_display("s") as display:
        for done in range(0, 1001, 100):
            now[0] += 1.0
            display.show_build_progress("decoding", done, 1000)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "s: decoding: 0 of 1,000"
    assert lines[-1] == "s: decoding: 1,000 of 1,000"
    assert 3 <= len(lines) <= 5


def test_a_terminal_shows_a_bar() -> None:
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=100).print(render_build_progress("s: decoding", 50, 1000))
    assert "s: decoding ━" in file.getvalue()
    assert "50 of 1,000" in file.getvalue()
