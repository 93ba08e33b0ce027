"""A study on a local Ray with two logical GPUs, one of which fails in every training step.

`python faulty_gpu_study.py FOLDER` runs the study and prints the results as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import ray
import torch

from study.config.plan import load_plan
from study.runner.gpu_faults import MAX_GPU_FAULTS
from study.runner.run import RunOptions, run
from tests.support.displays import RecordingDisplay
from tests.support.running_studies import create_study, read_journal_rows, write_features
from trainables.actors.trainable import StudyTrial
from trainables.actors.worker import TrialWorker

FAULTY_GPU = "0"
FAULT_TEXT = "CUDA error: uncorrectable ECC error encountered"


class TrialOnFaultyGpu(StudyTrial):
    """Trial whose training steps fail on the faulty GPU, as torch reports it.

    On the other GPU it waits until the faulty one has been used, so that it does not train all
    trials before the first process on the faulty one has started.
    """

    def step(self) -> dict[str, Any]:
        """Train one epoch, or fail in its first step."""
        assert isinstance(self._workers, TrialWorker)
        assert self._workers._spec is not None
        log = Path(self._workers._spec.checkpoint_dir, "faults.txt")
        if os.environ.get("CUDA_VISIBLE_DEVICES") != FAULTY_GPU:
            _wait_for_faults(log)
            return super().step()
        error = torch.AcceleratorError(f"{FAULT_TEXT}\nadvice on debugging")
        with mock.patch.object(torch.Tensor, "backward", side_effect=error):
            result = super().step()
        if result["state"] == "lost":
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                file.write("fault\n")
        return result


def _wait_for_faults(log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if log.exists() and len(log.read_text("utf-8").splitlines()) >= MAX_GPU_FAULTS:
            return
        time.sleep(0.05)


def run_study(folder: Path) -> dict[str, Any]:
    """Run the study; return the states of its trials and the warnings."""
    study_dir = create_study(
        folder,
        data={"name": "arrays", "path": str(write_features(folder))},
        losses=["triplet"],
        training={"epochs": 2, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 6, "repeats": 1, "stop_early": False},
        resources={"gpus_per_trial": 1, "cpus_per_trial": 1},
    )
    display = RecordingDisplay()
    options = RunOptions(report=False, trainable=TrialOnFaultyGpu)
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    try:
        summary = run(study_dir, load_plan(study_dir.path), display=display, options=options)
    finally:
        ray.shutdown()
    states = read_journal_rows(study_dir)["state"].value_counts().to_dict()
    return {
        "finished": summary.is_finished,
        "stop_reason": summary.stop_reason,
        "states": states,
        "warnings": display.warnings,
    }


def run_in_process(folder: Path) -> dict[str, Any]:
    """Return the results of `run_study` in a new process, because a process has only one Ray."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(folder)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise AssertionError(done.stdout[-3000:] + done.stderr[-3000:])
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


if __name__ == "__main__":
    print("\n" + json.dumps(run_study(Path(sys.argv[1])), default=str))
