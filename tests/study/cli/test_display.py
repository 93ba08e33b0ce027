"""What a person is told while a study runs."""

from __future__ import annotations

import io
import math

import pytest

from study.display import Pace, building_bar, open_display
from study.jobs import Progress


def progress(*, done: int, running: int) -> list[Progress]:
    return [
        Progress(
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
    pace = Pace(clock=lambda: now[0])
    assert math.isnan(pace.seconds_left(progress(done=20, running=0)))
    now[0] = 60.0  # a minute went by until a trial ran
    assert math.isnan(pace.seconds_left(progress(done=20, running=1)))
    now[0] = 70.0  # and 10 s for 5 epochs
    assert pace.seconds_left(progress(done=25, running=1)) == 10.0 * 75 / 5
    assert pace.seconds_left(progress(done=100, running=0)) == 0.0


def test_long_building_is_seen_before_it_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("study.display.time.monotonic", lambda: now[0])
    with open_display("mine") as display:
        for done in range(0, 1001, 100):
            now[0] += 1.0
            display.building("decoding", done, 1000)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "mine: decoding: 0 of 1,000"
    assert said[-1] == "mine: decoding: 1,000 of 1,000"
    assert 3 <= len(said) <= 5


def test_a_terminal_shows_a_bar() -> None:
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=100).print(building_bar("mine: decoding", 50, 1000))
    assert "mine: decoding ━" in file.getvalue()
    assert "50 of 1,000" in file.getvalue()
