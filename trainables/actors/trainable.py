"""A trial as Ray Tune sees it: a class Trainable whose step is one epoch.

The actor is reused from trial to trial, and so are its ranks if it has several. Whatever goes wrong
inside a trial is a result, not an exception: Tune's own retries are left for processes that died.
"""

from __future__ import annotations

from typing import Any

from ray.tune import Trainable

from trainables.ranks import RankGroup
from trainables.settings import TrialSpec
from trainables.worker import Worker


class StudyTrial(Trainable):  # type: ignore[misc]
    """Trains what `config["spec"]` says, from its last checkpoint if there is one."""

    _crew: Worker | RankGroup | None = None

    def setup(self, config: dict[str, Any]) -> None:
        """Nothing is built yet: building may fail, and a failure is a result of `step`."""
        self._start(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial into this process.

        Raises:
            RuntimeError: The last trial left the process unusable. (Were the answer False, Tune
                would drop the trial and tell nobody.)
        """
        if isinstance(self._crew, Worker) and self._crew.is_broken:
            raise RuntimeError("the device of this process is broken")
        self._start(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """One epoch of all folds and seeds.

        Raises:
            RanksLostError: A rank's process died; Tune starts the trial again.
        """
        assert self._crew is not None
        result = self._crew.step()
        result["done"] = result["state"] != "running"
        return result

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Tune's own checkpoints are not used; see `trainables.checkpoints`."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Tune's own checkpoints are not used; see `trainables.checkpoints`."""

    def cleanup(self) -> None:
        """Drop what the process holds."""
        if isinstance(self._crew, RankGroup):
            self._crew.close()
        self._crew = None

    def _start(self, config: dict[str, Any]) -> None:
        spec = TrialSpec.from_dict(config["spec"])
        if self._crew is None:
            ranks = int(spec.resources.get("ranks_per_trial", 1))
            self._crew = RankGroup(spec.resources) if ranks > 1 else Worker()
        self._crew.start(spec)
