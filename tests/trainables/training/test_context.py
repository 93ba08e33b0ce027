"""Training context: backbones of trials, notes on data quality, and the input size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.trial_specs import CONV4, GLYPHS
from trainables.data.dataset import Dataset, DatasetPart
from trainables.models.backbone import build_backbone
from trainables.training.context import (
    TrainingContext,
    choose_input_size,
    open_context,
    untrained_backbone,
)


def test_a_trial_freezes_the_norms_of_its_own_copy_of_the_pretrained_backbone(
    data_cache: Path, tmp_path: Path
) -> None:
    source = build_backbone("conv4", in_channels=1, image_size=28)
    torch.save(source.model.state_dict(), tmp_path / "w.pth")
    options = {**CONV4, "pretrained": str(tmp_path / "w.pth")}
    context = open_context(GLYPHS, options, cache_dir=data_cache)
    own = context.new_backbone(seed=1, bn_freeze="all")
    assert own is not None
    assert context.prototype is not None
    norms = [m for m in own.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(m.training or m.weight.requires_grad for m in norms)
    assert context.prototype.bn_freeze == "none"
    for name, value in source.model.state_dict().items():
        assert torch.equal(own.model.state_dict()[name], value), name


def test_enlarged_images_are_noted(data_cache: Path) -> None:
    for size, n_notes in ((28, 0), (29, 1)):
        context = open_context(GLYPHS, {**CONV4, "image_size": size}, cache_dir=data_cache)
        notes = [n for n in context.quality_notes if "28 px" in n and "29 px" in n]
        assert len(notes) == n_notes


def test_classes_with_a_single_image_are_noted() -> None:
    train = DatasetPart(np.ones((5, 3), np.float32), np.array([0, 0, 1, 1, 2]))
    test = DatasetPart(np.ones((4, 3), np.float32), np.array([3, 3, 4, 4]))
    data = Dataset("birds", train, test, ("a", "b", "lark", "d", "e"), "")
    context = TrainingContext(data, {"name": "none"}, None, 0, Path())
    (note,) = context.quality_notes
    assert note.startswith("birds: 1 training class ")
    assert "'lark'" in note
    complete = replace(data, train=DatasetPart(train.items[:4], train.labels[:4]))
    assert TrainingContext(complete, {"name": "none"}, None, 0, Path()).quality_notes == ()


def test_random_backbones_depend_on_the_seed_only(glyphs_context: TrainingContext) -> None:
    backbones = [glyphs_context.new_backbone(seed=s, bn_freeze="none") for s in (1, 1, 2)]
    first, again, other = (next(b.parameters()) for b in backbones if b is not None)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert glyphs_context.initial_weights_fingerprint == ""


def test_a_frozen_backbone_is_shared_and_trials_have_none(data_cache: Path) -> None:
    context = open_context(GLYPHS, {**CONV4, "frozen": True}, cache_dir=data_cache)
    assert not context.trains_backbone
    assert context.new_backbone(seed=1, bn_freeze="none") is None
    assert untrained_backbone(context) is context.prototype
    assert context.initial_weights_fingerprint
    data = context.prepare_data("avg", torch.device("cpu"))
    assert data.train.kind == "features"


@pytest.mark.parametrize(("stored", "expected"), [(28, 28), (96, 96), (256, 224), (128, 112)])
def test_large_images_are_cropped_as_in_the_papers(stored: int, expected: int) -> None:
    assert choose_input_size(stored) == expected
