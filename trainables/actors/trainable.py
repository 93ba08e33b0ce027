"""Ray Tune trainable of a trial, whose step is one epoch.

The actor is reused by the next trial, and so are its ranks if it has several. An error inside a
trial is reported as a result and not raised, so that only a lost process is an error to Tune.

After a fault of its GPU the actor leaves the decision to the study's controller. If the controller
stops the trial, the actor refuses the next one and Tune replaces it. If the controller continues
the trial instead, the actor trains nothing more and holds its GPU, so that Ray gives it to no other
trial: Ray cannot exclude a single GPU of a node.
"""

from __future__ import annotations

import time
from typing import Any

from ray.tune import Trainable

from trainables.actors.ranks import RankGroup
from trainables.actors.worker import TrialWorker
from trainables.config import TrialSpec

HOLD_INTERVAL_SECONDS = 2.0
"""Time between two reports of an actor that holds its GPU."""


class StudyTrial(Trainable):  # type: ignore[misc]
    """Tune trainable that trains `config["spec"]`, from its last checkpoint if one exists."""

    _workers: TrialWorker | RankGroup | None = None
    _faulty_gpu = ""
    _is_broken = False

    def setup(self, config: dict[str, Any]) -> None:
        """Set the first trial. `step` builds it, because a build error must become a result."""
        self._assign_trial(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Set the next trial of this process.

        Raises:
            RuntimeError: If the last trial left the process unusable. (If this method returned
                False, Tune would drop the trial silently.)
        """
        if self._is_broken:
            raise RuntimeError("the GPU or a rank of this process failed in the last trial")
        self._assign_trial(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train one epoch of all folds and seeds and return the result.

        After a fault of the GPU, wait instead and return a result of the state `held`.

        Raises:
            RanksLostError: If a rank's process died; the study's controller requeues the trial.
        """
        assert self._workers is not None
        if self._faulty_gpu:
            time.sleep(HOLD_INTERVAL_SECONDS)
            return {"state": "held", "epoch": 0, "faulty_gpu": self._faulty_gpu, "done": False}
        result = self._workers.step()
        self._faulty_gpu = result.get("faulty_gpu", "")
        if isinstance(self._workers, TrialWorker):
            self._is_broken = self._workers.device_failed
        else:
            self._is_broken = result["state"] == "lost"  # perhaps with a node of the trial
        result["refuses_next_trial"] = self._is_broken
        result["done"] = result["state"] != "running" and not self._faulty_gpu
        return result

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: `trainables.training.checkpoints` replaces Tune's checkpoints."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: `trainables.training.checkpoints` replaces Tune's checkpoints."""

    def cleanup(self) -> None:
        """Release the workers of this process, after a checkpoint that is being written."""
        if isinstance(self._workers, RankGroup):
            self._workers.close()
        elif self._workers is not None:
            self._workers.release_trial()
        self._workers = None

    def _assign_trial(self, config: dict[str, Any]) -> None:
        spec = TrialSpec.from_dict(config["spec"])
        if self._workers is None:
            ranks = int(spec.resources.get("ranks_per_trial", 1))
            self._workers = RankGroup(spec.resources) if ranks > 1 else TrialWorker()
        self._workers.assign_trial(spec)
