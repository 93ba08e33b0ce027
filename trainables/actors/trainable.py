"""Ray Tune trainable of a trial, whose step is one epoch.

The actor is reused by the next trial, and so are its ranks if it has several. An error inside a
trial is reported as a result and not raised, so that only a lost process is an error to Tune.
"""

from __future__ import annotations

from typing import Any

from ray.tune import Trainable

from trainables.actors.ranks import RankGroup
from trainables.actors.worker import TrialWorker
from trainables.config import TrialSpec


class StudyTrial(Trainable):  # type: ignore[misc]
    """Tune trainable that trains `config["spec"]`, from its last checkpoint if one exists."""

    _workers: TrialWorker | RankGroup | None = None

    def setup(self, config: dict[str, Any]) -> None:
        """Set the first trial. `step` builds it, because a build error must become a result."""
        self._assign_trial(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Set the next trial of this process.

        Raises:
            RuntimeError: If the last trial left the process unusable. (If this method returned
                False, Tune would drop the trial silently.)
        """
        if isinstance(self._workers, TrialWorker) and self._workers.device_failed:
            raise RuntimeError("the GPU of this process is unusable after a CUDA error")
        self._assign_trial(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train one epoch of all folds and seeds and return the result.

        Raises:
            RanksLostError: If a rank's process died; the study's controller requeues the trial.
        """
        assert self._workers is not None
        result = self._workers.step()
        result["done"] = result["state"] != "running"
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
