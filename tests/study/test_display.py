"""What a person is told while a study runs."""

from __future__ import annotations

import math

from study.display import Pace
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
