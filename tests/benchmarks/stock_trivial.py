"""Trivial trial for Tune without this platform."""

from __future__ import annotations

import time
from typing import Any

from ray.tune import Trainable


class StockTrivial(Trainable):  # type: ignore[misc]
    """Trainable that sleeps and reports a score computed from its margin."""

    def setup(self, config: dict[str, Any]) -> None:
        self.settings = config
        self.epoch = 0

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        self.epoch += 1
        time.sleep(self.settings["pause"])
        score = 1.0 - abs(self.settings["margin"] - 0.3) + 0.01 * self.epoch
        return {
            "map_at_r": score,
            "recall_at_1": score,
            "loss": 1.0,
            "seconds": self.settings["pause"],
            "done": self.epoch >= self.settings["epochs"],
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing, because the trial has no state."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load nothing, because the trial has no state."""
