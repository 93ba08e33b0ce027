"""Tune trainable of a trial: reuse of its worker, results, and clean-up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.trial_specs import make_spec
from trainables.actors import trainable as trainable_module
from trainables.actors.trainable import StudyTrial
from trainables.config import TrialSpec

pytestmark = pytest.mark.split


class FakeWorkers:
    """Workers of a trial that finish it after two steps."""

    created: list[FakeWorkers]

    def __init__(self, resources: Any = None) -> None:
        self.created.append(self)
        self.trials: list[str] = []
        self.steps, self.closed, self.released, self.device_failed = 0, False, False, False
        self.fault: dict[str, Any] = {}

    def assign_trial(self, spec: TrialSpec) -> None:
        self.trials.append(spec.trial)
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        if self.fault:
            return dict(self.fault)
        return {"state": "finished" if self.steps == 2 else "running", "epoch": self.steps}

    def close(self) -> None:
        self.closed = True

    def release_trial(self) -> None:
        self.released = True


class FakeWorker(FakeWorkers):
    created: list[FakeWorkers] = []  # noqa: RUF012


class FakeRanks(FakeWorkers):
    created: list[FakeWorkers] = []  # noqa: RUF012


@pytest.fixture(autouse=True)
def replaced_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainables use the workers above."""
    for kind in (FakeWorker, FakeRanks):
        monkeypatch.setattr(kind, "created", [])
    monkeypatch.setattr(trainable_module, "TrialWorker", FakeWorker)
    monkeypatch.setattr(trainable_module, "RankGroup", FakeRanks)


def make_config(**changes: Any) -> dict[str, Any]:
    return {"spec": make_spec("triplet", **changes).to_dict()}


def test_a_trial_is_done_when_its_worker_is() -> None:
    trial = StudyTrial(make_config())
    assert [trial.step()["done"] for _ in range(2)] == [False, True]


def test_the_worker_is_reused_by_the_next_trial() -> None:
    trial = StudyTrial(make_config(trial="a"))
    assert trial.reset_config(make_config(trial="b"))
    (worker,) = FakeWorker.created
    assert worker.trials == ["a", "b"]
    assert not FakeRanks.created


def test_clean_up_releases_the_trial_and_so_completes_its_checkpoint() -> None:
    trial = StudyTrial(make_config())
    trial.cleanup()
    assert FakeWorker.created[0].released


def test_a_process_whose_gpu_failed_takes_no_further_trial() -> None:
    trial = StudyTrial(make_config())
    assert not trial.step()["refuses_next_trial"]
    FakeWorker.created[0].device_failed = True
    assert trial.step()["refuses_next_trial"]
    with pytest.raises(RuntimeError, match="GPU"):
        trial.reset_config(make_config())


@pytest.mark.parametrize("ranks", [1, 2])
def test_after_a_fault_of_its_gpu_the_actor_waits_for_the_controller(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Tune would end a trial that is done and free its GPU; the controller may want to hold it."""
    monkeypatch.setattr(trainable_module, "HOLD_INTERVAL_SECONDS", 0.0)
    trial = StudyTrial(make_config(resources={"ranks_per_trial": ranks}))
    (workers,) = FakeWorker.created + FakeRanks.created
    workers.device_failed = True
    workers.fault = {"state": "lost", "epoch": 0, "faulty_gpu": "GPU 3"}
    lost = trial.step()
    assert (lost["state"], lost["done"], lost["refuses_next_trial"]) == ("lost", False, True)
    for _ in range(3):
        held = trial.step()
        assert (held["state"], held["faulty_gpu"], held["done"]) == ("held", "GPU 3", False)
    assert workers.steps == 1, "it trains no more"
    with pytest.raises(RuntimeError, match="GPU"):
        trial.reset_config(make_config())


def test_ranks_that_were_lost_are_replaced_with_their_placement_group() -> None:
    trial = StudyTrial(make_config(resources={"ranks_per_trial": 2}))
    FakeRanks.created[0].fault = {"state": "lost", "epoch": 0}
    assert trial.step()["done"]
    with pytest.raises(RuntimeError, match="rank"):
        trial.reset_config(make_config())


def test_a_trial_with_several_ranks_has_a_rank_group_which_clean_up_closes() -> None:
    trial = StudyTrial(make_config(resources={"ranks_per_trial": 2}))
    assert not FakeWorker.created
    (ranks,) = FakeRanks.created
    trial.cleanup()
    assert ranks.closed
