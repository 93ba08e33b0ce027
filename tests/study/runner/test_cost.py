"""Cost estimates of plans."""

from __future__ import annotations

from typing import Any

import pytest

from study.runner.cost import format_cost, total_cost
from tests.support.scheduler_simulation import make_plan


def test_cost_is_trials_times_epochs_times_seconds() -> None:
    plan = make_plan(
        losses=["triplet"],
        search={"trials": 10, "repeats": 1},
        resources={"gpus_per_trial": 2, "ranks_per_trial": 2, "cpus_per_trial": 2},
    )
    cost = total_cost(plan, {"triplet": 80.0}, gpu_price=1.5)
    assert plan.max_trials("triplet") * plan.epochs_per_trial("triplet") == 90
    assert cost["slot_hours"] == pytest.approx(1.0), "two ranks take half the time"
    assert cost["gpu_hours"] == pytest.approx(2.0)
    assert cost["price"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"gpus_per_trial": 1}, "at most"),
        ({"gpus_per_trial": 0.25}, "if trials that share a GPU do not slow each other"),
        (
            {"ranks_per_trial": 4, "gpus_per_trial": 4, "cpus_per_trial": 4},
            "if the 4 ranks of a trial scale perfectly",
        ),
    ],
)
def test_a_cost_that_is_no_bound_says_what_it_assumes(resources: dict[str, Any], said: str) -> None:
    plan = make_plan(losses=["triplet"], resources=resources)
    first = format_cost(total_cost(plan, {"triplet": 80.0})).splitlines()[0]
    assert first == f"cost at this machine's speed, {said} (early stopping only shortens it):"
