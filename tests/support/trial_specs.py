"""Specifications of small trials (glyphs, conv4) for tests of training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainables.config import TrainingSettings, TrialSpec
from trainables.training.trial_trainer import TrialTrainer

GLYPHS = {"name": "glyphs", "classes": 200, "samples": 6}
CONV4 = {"name": "conv4", "pretrained": False, "frozen": False}
LOSS_PARAMS: dict[str, dict[str, Any]] = {
    "proxy_anchor": {"alpha": 32.0, "delta": 0.1},
    "proxy_nca_pp": {"temperature": 0.11},
    "circle": {"gamma": 80.0, "m": 0.4},
    "triplet": {"margin": 0.2},
    "proxy_anchor+synthesis": {
        "alpha": 32.0,
        "delta": 0.1,
        "synthesis_alpha": 0.4,
        "synthesis_mu": 1.0,
    },
}


def make_spec(loss: str, checkpoint_dir: Path | str = "", **changes: Any) -> TrialSpec:
    """Return a trial of four short epochs, with fields replaced by `changes`."""
    settings = TrainingSettings(epochs=4, batch_size=32, embedding_dim=16, augment="light")
    base = TrialSpec(
        trial=f"{loss}-0000",
        loss=loss,
        loss_knobs=LOSS_PARAMS[loss],
        settings=settings,
        seed=5,
        dataset=GLYPHS,
        backbone=CONV4,
        cache_dir="",
        checkpoint_dir=str(checkpoint_dir),
        threads=1,
    )
    return replace(base, **changes)


def copy_weights(trainer: TrialTrainer) -> list[torch.Tensor]:
    """Return copies of all weights and buffers of a trainer's models and losses."""
    tensors = []
    for replica in trainer.replicas:
        tensors += [t.clone() for t in replica.model.state_dict().values()]
        tensors += [t.clone() for t in replica.loss.state_dict().values()]
    return tensors


def are_all_equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Return whether two lists of tensors are bitwise equal."""
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
