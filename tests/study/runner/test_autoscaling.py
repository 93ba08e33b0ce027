"""What a study asks an autoscaling cluster for, what lost nodes cost it, and what all costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from study.cost import in_words, spread
from study.file import ResourcesSection
from study.jobs import Job, Outcome
from study.tuning.board import Wish
from study.tuning.desk import MAX_LOSSES, Desk
from study.tuning.growth import UPDATE_SECONDS, Growth, possible_nodes, together, wish_of
from tests.study.tuning_simulation import make_plan, open_ledger

FILE_OF_CLUSTER = {
    "max_workers": 4,
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 0}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 8, "GPU": 2}},
    },
}


class Wall:
    """A board in memory; each study has its own view of it."""

    def __init__(self, notes: dict[str, Wish], study: str) -> None:
        self.notes, self.study = notes, study

    def publish(self, wish: Wish | None) -> None:
        self.notes.pop(self.study, None)
        if wish is not None:
            self.notes[self.study] = wish

    def wishes(self) -> list[Wish]:
        return [self.notes[study] for study in sorted(self.notes)]


def test_all_nodes_are_asked_for_at_once_and_let_go() -> None:
    nodes = possible_nodes(FILE_OF_CLUSTER)
    assert len(nodes) == 5
    resources = ResourcesSection(gpus_per_trial=1, cpus_per_trial=2)
    asked: list[int] = []
    now = [0.0]
    growth = Growth(
        resources, nodes, Wall({}, "a"), lambda b: asked.append(len(b)), clock=lambda: now[0]
    )
    for left in (100, 100, 60, 3, 2):
        growth.update(left)
        now[0] += UPDATE_SECONDS
    growth.close()
    growth.close()
    assert asked == [8, 3, 2, 0]


def test_studies_of_one_cluster_ask_for_the_sum_and_keep_what_the_other_wants() -> None:
    nodes, notes, asked = possible_nodes(FILE_OF_CLUSTER), dict[str, Wish](), list[Any]()
    a = Growth(ResourcesSection(gpus_per_trial=1), nodes, Wall(notes, "a"), asked.append)
    b = Growth(ResourcesSection(cpus_per_trial=8), nodes, Wall(notes, "b"), asked.append)
    a.update(2)
    b.update(1)
    assert asked[-1] == [{"CPU": 1, "GPU": 1}, {"CPU": 8}, {"CPU": 1, "GPU": 1}]
    a.close()
    assert asked[-1] == [{"CPU": 8}], "the other study's nodes stay"
    b.close()
    assert asked[-1] == []


def test_studies_that_want_all_of_a_cluster_share_it_turn_by_turn() -> None:
    nodes = possible_nodes(FILE_OF_CLUSTER)
    one, pair = Wish({"CPU": 1, "GPU": 1}, 1, 100), Wish({"CPU": 1, "GPU": 2}, 2, 100)
    assert together([one], nodes) == [one.bundle] * 8
    both = together([one, pair], nodes)
    assert both.count({"CPU": 1, "GPU": 2}) == 2
    assert both.count({"CPU": 1, "GPU": 1}) == 4
    assert together([one, Wish({"GPU": 3}, 1, 5)], nodes) == [one.bundle] * 8


def test_never_more_is_asked_than_the_cluster_can_have() -> None:
    nodes = [{"CPU": 8.0, "GPU": 4.0}] * 3

    def wanted(resources: ResourcesSection) -> list[dict[str, float]]:
        return together([wish_of(resources, 50, nodes)], nodes)

    two = ResourcesSection(gpus_per_trial=4, ranks_per_trial=4, nodes_per_trial=2, cpus_per_trial=4)
    assert wanted(two) == [{"CPU": 2, "GPU": 2}] * 6
    few = ResourcesSection(gpus_per_trial=1, max_concurrent=2)
    assert wanted(few) == [{"CPU": 1, "GPU": 1}] * 2
    assert wanted(ResourcesSection(cpus_per_trial=9)) == []


class Silent:
    """A tracker that is told nothing of interest."""

    def started(self, job: Job) -> None: ...

    def epoch(self, job: Job, epoch: int, metrics: Any, host: str) -> None: ...

    def ended(self, job: Job, outcome: Outcome) -> None: ...


def lose(folder: Path, nodes_lost: Callable[[], int], times: int) -> Desk:
    """A trial that never finishes an epoch, because its process is lost again and again."""
    plan = make_plan()
    desk = Desk(
        plan,
        open_ledger(plan, folder),
        Silent(),
        cache_dir=folder,
        checkpoint_dir=str(folder / "c"),
        slots=lambda: 1,
        nodes_lost=nodes_lost,
    )
    for _ in range(times):
        spec = desk.start()
        assert spec is not None
        assert spec["trial"].endswith("-0000"), "it is never given up"
        desk.lost(spec["trial"])
    return desk


def test_lost_nodes_are_pauses_and_lost_processes_are_not_for_ever(tmp_path: Path) -> None:
    count = iter(range(1000))
    for name in "ab":
        (tmp_path / name).mkdir()
    spot = lose(tmp_path / "a", lambda: next(count), 4 * MAX_LOSSES)
    assert sum(p.failed for p in spot.ledger.progress()) == 0
    assert sum(p.ended for p in spot.ledger.progress()) == 0
    crash = lose(tmp_path / "b", lambda: 0, MAX_LOSSES + 1)
    other = crash.start()
    assert other is not None
    crash.result(other["trial"], {"state": "running", "epoch": 1, "score": 0.5})
    (failed,) = (job for job in crash.ledger.ended_jobs() if job.trial != other["trial"])
    assert failed.trial.endswith("-0000"), "it was its own fault, since another one trains"


def test_a_node_that_ray_calls_dead_only_later_is_a_pause_too(tmp_path: Path) -> None:
    """Ranks end as soon as the other node is silent: the count rises before the next start."""
    looks = iter(range(1000))
    late = lose(tmp_path, lambda: next(looks) // 2, 4 * MAX_LOSSES)
    assert sum(p.failed + p.ended for p in late.ledger.progress()) == 0


def test_cost_is_trials_times_epochs_times_seconds() -> None:
    plan = make_plan(
        losses=["triplet"],
        search={"trials": 10, "repeats": 1},
        resources={"gpus_per_trial": 2, "ranks_per_trial": 2, "cpus_per_trial": 2},
    )
    cost = spread(plan, {"triplet": 80.0}, gpu_price=1.5)
    assert plan.trials("triplet") * plan.epochs("triplet") == 90
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
    first = in_words(spread(plan, {"triplet": 80.0})).splitlines()[0]
    assert first == f"cost at this machine's speed, {said} (early stopping only shortens it):"
