"""Which trials does a model see when there are too many?"""

from __future__ import annotations

import pytest

from study.analyses.samples import gather
from tests.study import known


@pytest.mark.parametrize("room", [20, 0, -20])
def test_too_many_trials_leave_out_what_the_sampler_chose_first(room: int) -> None:
    table = known.study_of("ishigami", known.PLANS["40% sobol, TPE, early stopping"], 0)
    chosen = table.of("a").set_index("trial")["origin"] == "bayes"
    every = gather(table, "a", max_rows=10_000)
    free = every.trials - int(chosen.sum())
    assert 20 < free < every.trials - 20
    some = gather(table, "a", max_rows=free + room)
    assert len(some.scores) == some.trials == free + room
    assert (every.left_out, some.left_out) == (0, every.trials - some.trials)
    blind = int((every.blind & every.last).sum())
    assert some.blind.sum() == blind if room >= 0 else 0 < some.blind.sum() < blind
