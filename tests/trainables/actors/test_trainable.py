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

    def assign_trial(self, spec: TrialSpec) -> None:
        self.trials.append(spec.trial)
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
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
    FakeWorker.created[0].device_failed = True
    with pytest.raises(RuntimeError, match="GPU"):
        trial.reset_config(make_config())


def test_a_trial_with_several_ranks_has_a_rank_group_which_clean_up_closes() -> None:
    trial = StudyTrial(make_config(resources={"ranks_per_trial": 2}))
    assert not FakeWorker.created
    (ranks,) = FakeRanks.created
    trial.cleanup()
    assert ranks.closed
