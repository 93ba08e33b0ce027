"""Trials whose checkpoint appears after the study has removed it, as after a late S3 upload."""

from __future__ import annotations

from typing import Any

from trainables.actors.trainable import StudyTrial
from trainables.actors.worker import TrialWorker
from trainables.training.checkpoints import load_checkpoint, save_checkpoint


class LateCheckpointTrial(StudyTrial):
    """Trial that writes a removed checkpoint of the trial before it again."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Set the next trial."""
        assert isinstance(self._workers, TrialWorker)
        spec = self._workers._spec
        assert spec is not None
        if load_checkpoint(spec.checkpoint_dir, spec.trial) is None:
            save_checkpoint(spec.checkpoint_dir, spec.trial, {"epoch": 1})
        return super().reset_config(new_config)
