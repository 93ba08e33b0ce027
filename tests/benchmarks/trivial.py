"""Trivial trials, for measuring the overhead of a study."""

from __future__ import annotations

import time
from typing import Any

from ray.tune import Trainable


class TrivialTrial(Trainable):  # type: ignore[misc]
    """Trainable that sleeps and reports a score computed from its margin.

    The data section's `seed` is the sleep per epoch in milliseconds.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._start(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._start(new_config)
        return True

    def _start(self, config: dict[str, Any]) -> None:
        self.spec = config["spec"]
        self.epoch = 0
        self.pause = float(self.spec["dataset"].get("seed", 0)) / 1000

    def step(self) -> dict[str, Any]:
        self.epoch += 1
        time.sleep(self.pause)
        score = 1.0 - abs(float(self.spec["loss_knobs"]["margin"]) - 0.3) + 0.01 * self.epoch
        done = self.epoch >= self.spec["settings"]["epochs"]
        return {
            "epoch": self.epoch,
            "score": score,
            "score_std": float("nan"),
            "seconds": self.pause * self.epoch,
            "metrics": {
                "map_at_r": score,
                "recall_at_1": score,
                "loss": 1.0,
                "seconds": self.pause,
            },
            "state": "finished" if done else "running",
            "host": "here",
            "error": "",
            "done": done,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing, because the trial has no state."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load nothing, because the trial has no state."""
