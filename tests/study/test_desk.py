"""The desk keeps a study going, whatever a single trial does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from search_spaces.space import Float
from study.jobs import Job, Outcome
from study.plan import Plan
from study.tuning.desk import Desk
from tests.study.tuning_simulation import make_plan, open_ledger


class Listener:
    """Remembers how trials ended."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}

    def started(self, job: Job) -> None:
        pass

    def epoch(self, job: Job, epoch: int, metrics: Mapping[str, float]) -> None:
        pass

    def ended(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.trial] = outcome


def open_desk(plan: Plan, directory: Path, listener: Listener) -> Desk:
    return Desk(
        plan,
        open_ledger(plan, directory),
        listener,
        cache_dir=directory,
        checkpoint_dir=str(directory / "checkpoints"),
        slots=lambda: 1,
    )


def test_a_point_that_cannot_be_trained_fails_alone(tmp_path: Path) -> None:
    """A plan made by an older version may hold a range that this one refuses."""
    plan = make_plan(losses=["triplet"], search={"trials": 8, "sampler": "sobol", "repeats": 1})
    space = plan.spaces["triplet"].with_changes(search={"weight_decay": Float(-1.0, 1.0)})
    listener = Listener()
    desk = open_desk(replace(plan, spaces={"triplet": space}), tmp_path, listener)
    started = []
    while (spec := desk.start()) is not None:
        started.append(spec["settings"]["weight_decay"])
        result = {"state": "finished", "epoch": 9, "score": 0.5}
        assert desk.result(spec["trial"], result)
    assert desk.ledger.is_finished()
    assert min(started) >= 0
    failed = [o for o in listener.outcomes.values() if o.state == "failed"]
    assert 0 < len(failed) < 8
    assert len(started) + len(failed) == 8
    assert all("`weight_decay >= 0` must hold" in outcome.error for outcome in failed)
