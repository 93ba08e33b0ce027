"""Worker of a trial: states, checkpoints, errors, and limits of GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.trial_specs import make_spec
from trainables.actors import worker as worker_module
from trainables.actors.worker import TrialWorker, limit_gpu_memory
from trainables.config import TrialSpec
from trainables.data.feed import DeviceItemStore
from trainables.distributed.world import WorldError
from trainables.training.errors import DivergedError
from trainables.training.trial_trainer import ReportWriteError

pytestmark = pytest.mark.split

N_EPOCHS = 4


class FakeTrainer:
    """A trainer without a model, whose methods fail as `errors` says."""

    device = "cpu"
    saved_epoch = 0
    """Epoch of the checkpoint, 0 for none."""
    errors: dict[str, Exception]
    events: list[str]
    """Epochs and checkpoints, in order."""

    def __init__(self, spec: TrialSpec, context: Any, world: Any) -> None:
        self._raise_error("build")
        self.epoch, self.last_result = 0, dict[str, Any]()

    def run_epoch(self) -> None:
        self._raise_error("run_epoch")
        self.epoch += 1
        self.events.append(f"epoch {self.epoch}")
        self.last_result = {"epoch": self.epoch, "score": self.epoch / 10}

    @property
    def is_done(self) -> bool:
        return self.epoch >= N_EPOCHS

    def describe_environment(self) -> dict[str, str]:
        return {"precision": "fp32"}

    def pop_memory_notes(self) -> list[str]:
        return []

    def restore_checkpoint(self, warn: Callable[[str], None]) -> bool:
        self._raise_error("restore_checkpoint")
        if self.saved_epoch < 0:
            warn("the checkpoint is damaged")
        elif self.saved_epoch > 0:
            self.epoch = self.saved_epoch
            self.last_result = {"epoch": self.epoch, "score": self.epoch / 10}
        return self.epoch > 0

    def start_checkpoint(self, report_error: ReportWriteError) -> None:
        self.events.append(f"start {self.epoch}")

    def complete_checkpoint(self, report_error: ReportWriteError) -> None:
        self.events.append(f"complete {self.epoch}")

    def finish_checkpoint(self) -> None:
        self.events.append(f"finish {self.epoch}")

    def _raise_error(self, method: str) -> None:
        if method in self.errors:
            raise self.errors[method]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type[FakeTrainer]:
    """The class of trainers that workers use, with its own errors and checkpoints."""

    class OwnTrainer(FakeTrainer):
        errors: dict[str, Exception] = {}  # noqa: RUF012
        events: list[str] = []  # noqa: RUF012

    monkeypatch.setattr(worker_module, "TrialTrainer", OwnTrainer)
    return OwnTrainer


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the data sets that were opened, in order."""
    names: list[str] = []

    def open_context(dataset: Any, backbone: Any, *, cache_dir: Path) -> Any:
        names.append(dataset["name"])
        data = SimpleNamespace(fingerprint="data-print")
        return SimpleNamespace(
            dataset=data,
            initial_weights_fingerprint="weights-print",
            item_store=DeviceItemStore(),
        )

    monkeypatch.setattr(worker_module, "open_context", open_context)
    return names


@pytest.fixture
def worker(trainer: type[FakeTrainer], opened: list[str]) -> TrialWorker:
    """A worker with a trial."""
    worker = TrialWorker()
    worker.assign_trial(make_spec("triplet"))
    return worker


def test_a_trial_runs_to_its_end(worker: TrialWorker, trainer: type[FakeTrainer]) -> None:
    results = [worker.step() for _ in range(N_EPOCHS)]
    assert [result["epoch"] for result in results] == [1, 2, 3, 4]
    assert [result["state"] for result in results] == ["running"] * 3 + ["finished"]
    assert trainer.events[:3] == ["start 0", "epoch 1", "complete 1"]
    assert trainer.events[-4:] == ["start 3", "epoch 4", "complete 4", "finish 4"]
    first = results[0]
    assert (first["fingerprint"], first["weights"]) == ("data-print", "weights-print")
    assert (first["device"], first["warning"], first["error"]) == ("cpu", "", "")


def test_a_restored_trial_repeats_the_report_of_its_checkpoint(
    worker: TrialWorker, trainer: type[FakeTrainer]
) -> None:
    trainer.saved_epoch = 2
    results = [worker.step() for _ in range(3)]
    assert [result["epoch"] for result in results] == [2, 3, 4]
    assert results[0]["score"] == 0.2
    assert results[-1]["state"] == "finished"


def test_a_damaged_checkpoint_is_a_warning(worker: TrialWorker, trainer: type[FakeTrainer]) -> None:
    trainer.saved_epoch = -1
    result = worker.step()
    assert (result["state"], result["epoch"]) == ("running", 1)
    assert "damaged" in result["warning"]


@pytest.mark.parametrize(
    ("method", "error", "state"),
    [
        ("run_epoch", DivergedError("the loss is nan"), "diverged"),
        ("run_epoch", WorldError("another rank died"), "lost"),
        ("restore_checkpoint", OSError("S3 does not respond"), "lost"),
        ("run_epoch", ValueError("wrong value"), "failed"),
        ("build", ValueError("wrong value"), "failed"),
    ],
)
def test_an_error_is_a_result_and_the_next_trial_runs(
    worker: TrialWorker,
    trainer: type[FakeTrainer],
    method: str,
    error: Exception,
    state: str,
) -> None:
    trainer.errors[method] = error
    result = worker.step()
    assert result["state"] == state
    assert str(error) in result["error"]
    assert ("traceback" in result) == (state == "failed")
    assert not worker.device_failed
    assert trainer.events[-1:] == ([] if method == "build" else ["finish 0"])
    trainer.errors.clear()
    worker.assign_trial(make_spec("triplet"))
    assert worker.step()["state"] == "running"


@pytest.mark.parametrize(
    ("error", "device_failed"),
    [
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (torch.OutOfMemoryError("CUDA out of memory; CUDA error"), False),
        (RuntimeError("shapes do not match"), False),
    ],
)
def test_only_a_cuda_error_makes_the_process_unusable(
    worker: TrialWorker, trainer: type[FakeTrainer], error: Exception, device_failed: bool
) -> None:
    trainer.errors["run_epoch"] = error
    assert worker.step()["state"] == "failed"
    assert worker.device_failed == device_failed


def test_data_are_opened_again_only_when_they_change(
    worker: TrialWorker, opened: list[str]
) -> None:
    spec = make_spec("triplet")
    for trial in (spec, replace(spec, seed=7), replace(spec, dataset={"name": "cub200"})):
        worker.assign_trial(trial)
        worker.step()
    assert opened == ["glyphs", "cub200"]


@pytest.mark.parametrize(("gib", "expected"), [(24, (6 - 0.625) / 24), (2, 0.125)])
def test_fractions_of_a_gpu_leave_memory_for_the_cuda_context(
    monkeypatch: pytest.MonkeyPatch, gib: int, expected: float
) -> None:
    """Four quarters and four contexts fit; on a tiny GPU tensors still get half of the share."""
    fractions: list[float] = []
    gpu = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    limit_gpu_memory({"gpus_per_trial": 0.25, "ranks_per_trial": 1})
    limit_gpu_memory({"gpus_per_trial": 1, "ranks_per_trial": 1})
    limit_gpu_memory({"gpus_per_trial": 2, "ranks_per_trial": 2})
    limit_gpu_memory({})
    assert fractions == pytest.approx([expected])


@pytest.mark.parametrize(
    ("text", "is_certain"),
    [
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA driver error: unknown error", True),
        ("No CUDA GPUs are available", True),
        ("CUDA error: unspecified launch failure", False),
        ("CUDA error: an illegal memory access was encountered", False),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", False),
        ("NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled cuda error", False),
    ],
)
def test_a_fault_of_the_gpu_loses_the_trial_and_the_process(
    worker: TrialWorker, trainer: type[FakeTrainer], text: str, is_certain: bool
) -> None:
    trainer.errors["run_epoch"] = RuntimeError(f"{text}\nadvice on debugging")
    result = worker.step()
    assert (result["state"], result["error"]) == ("lost", f"RuntimeError: {text}")
    assert result["faulty_gpu"].endswith(f"on {result['host']}")
    assert result["hardware_fault"] == is_certain
    assert text in result["traceback"]
    assert worker.device_failed


def test_a_broken_connection_between_ranks_is_not_a_fault_of_the_gpu(
    worker: TrialWorker, trainer: type[FakeTrainer]
) -> None:
    trainer.errors["run_epoch"] = dist.DistBackendError("NCCL error: ncclRemoteError")
    result = worker.step()
    assert result["state"] == "lost"
    assert "faulty_gpu" not in result
    assert not worker.device_failed


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("wrong value"), "failed"),
        (torch.OutOfMemoryError("CUDA out of memory"), "failed"),
        (DivergedError("the loss is nan"), "diverged"),
    ],
)
@pytest.mark.parametrize("problem", ["", "CUDA error: unknown error"])
def test_the_gpu_is_probed_after_any_failure(
    worker: TrialWorker,
    trainer: type[FakeTrainer],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    state: str,
    problem: str,
) -> None:
    """A loss on a broken GPU may be NaN, and a library may call its failure lack of memory."""
    trainer.errors["run_epoch"] = error
    monkeypatch.setattr(worker_module, "probe_device", lambda device: problem)
    result = worker.step()
    assert result["state"] == ("lost" if problem else state)
    assert worker.device_failed == bool(problem)
    assert ("faulty_gpu" in result) == bool(problem)
    assert str(error) in result["error"]
    assert problem in result["error"]


def test_the_gpu_is_not_probed_while_all_is_well(
    worker: TrialWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "probe_device", lambda device: pytest.fail("probed"))
    assert [worker.step()["state"] for _ in range(N_EPOCHS)][-1] == "finished"


def test_memory_is_released_at_the_end_and_before_the_next_trial(
    worker: TrialWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that is stopped early ends when the next one is assigned."""
    released: list[torch.device] = []
    monkeypatch.setattr(worker_module, "release_memory", released.append)
    for n_released in (0, 0, 0, 1):
        worker.step()
        assert len(released) == n_released
    worker.assign_trial(make_spec("triplet"))
    assert len(released) == 2


def test_a_trial_on_a_gpu_prepares_the_allocator_and_names_its_gpu(
    worker: TrialWorker, trainer: type[FakeTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is taken before a fault, which may end the driver."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(worker_module, "release_memory", lambda device: None)
    monkeypatch.setattr(worker_module, "configure_allocator", lambda: calls.append("allocator"))
    names = iter(["A100 GPU-1", "unknown"])
    monkeypatch.setattr(worker_module, "describe_gpu", lambda device: next(names))
    worker.assign_trial(make_spec("triplet", resources={"gpus_per_trial": 1}))
    worker.step()
    assert calls == ["allocator"]
    trainer.errors["run_epoch"] = RuntimeError("CUDA error: unknown error")
    assert worker.step()["faulty_gpu"] == "A100 GPU-1"


@pytest.mark.parametrize(
    ("resources", "fraction"),
    [
        ({}, 1.0),
        ({"gpus_per_trial": 0.25}, 0.25),
        ({"gpus_per_trial": 4, "ranks_per_trial": 4}, 1.0),
    ],
)
def test_resident_data_use_the_part_of_the_gpu_that_the_trial_has(
    opened: list[str], resources: dict[str, Any], fraction: float
) -> None:
    worker = TrialWorker()
    worker.assign_trial(replace(make_spec("triplet"), resources=resources))
    assert worker._open_context().item_store.memory_fraction == fraction
