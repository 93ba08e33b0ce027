"""Estimate of the memory of a training step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.trial_specs import make_spec
from trainables.config import TrainingSettings
from trainables.training.context import open_context
from trainables.training.memory_estimate import estimate_memory
from trainables.training.replica import ModelReplica
from trainables.training.trial_trainer import TrialTrainer

pytestmark = pytest.mark.slow
GLYPHS = {"name": "glyphs", "classes": 24, "samples": 2, "size": 32}


def make_replica(backbone: str, image_size: int, folder: Path) -> ModelReplica:
    spec = make_spec(
        "proxy_anchor",
        settings=TrainingSettings(batch_size=4, embedding_dim=512),
        dataset=GLYPHS,
        backbone={"name": backbone, "image_size": image_size},
    )
    context = open_context(spec.dataset, spec.backbone, cache_dir=folder)
    return TrialTrainer(spec, context).replicas[0]


@pytest.mark.parametrize(
    ("backbone", "mib_per_image"), [("resnet50", 82), ("vit_small_patch16_224", 56)]
)
def test_activations_are_those_that_were_measured(
    backbone: str, mib_per_image: float, tmp_path: Path
) -> None:
    replica = make_replica(backbone, 224, tmp_path)
    norms = {name: buffer.clone() for name, buffer in replica.model.named_buffers()}
    exact, half = (estimate_memory(replica, precision) for precision in ("fp32", "bf16"))
    assert exact.bytes_per_image / 2**20 == pytest.approx(mib_per_image, rel=0.1)
    assert half.bytes_per_image == exact.bytes_per_image / 2
    weights = sum(p.nbytes for p in [*replica.model.parameters(), *replica.loss.parameters()])
    assert exact.state_bytes == half.state_bytes == 4 * weights
    assert replica.model.precision == "fp32"
    assert all(torch.equal(b, norms[name]) for name, b in replica.model.named_buffers())
