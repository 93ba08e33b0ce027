"""Networks restored from checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.trial_specs import CONV4, GLYPHS, make_spec
from trainables.training.context import open_context
from trainables.training.evaluation import embed_items
from trainables.training.restored_network import embed_validation_items, load_network_weights
from trainables.training.trial_trainer import TrialTrainer


@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_is_restored_from_a_checkpoint(
    frozen: bool, data_cache: Path, tmp_path: Path
) -> None:
    context = open_context(GLYPHS, {**CONV4, "frozen": frozen}, cache_dir=data_cache)
    spec = make_spec("triplet", tmp_path, folds=2, backbone=dict(context.backbone_options))
    assert load_network_weights(spec) is None
    trainer = TrialTrainer(spec, context)
    trainer.run_epoch()
    trainer.write_checkpoint()
    weights = load_network_weights(spec)
    assert weights is not None
    replica = trainer.replicas[0]
    expected = embed_items(replica.model, replica.task.evaluation, replica.augment)
    assert np.array_equal(embed_validation_items(spec, context, weights), expected)
