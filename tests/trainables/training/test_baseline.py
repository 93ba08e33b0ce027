"""Metrics of the untrained backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.trial_specs import CONV4, GLYPHS, make_spec
from trainables.data.dataset import Dataset, DatasetPart
from trainables.distributed.world import World
from trainables.models.frozen_features import compute_features
from trainables.training.baseline import untrained_metrics
from trainables.training.context import TrainingContext, open_context
from trainables.training.evaluation import embed_items
from trainables.training.trial_trainer import TrialTrainer


def test_features_and_the_baseline_are_computed_on_the_trials_device(
    glyphs_context: TrainingContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cpu", 0)  # not equal, and always available
    progress_calls: list[tuple[str, int, int]] = []
    devices: list[torch.device] = []

    def record_features(*arguments: Any, device: torch.device, **options: Any) -> Dataset:
        devices.append(device)
        return compute_features(*arguments, device=device, **options)

    def record_embedding(model: nn.Module, part: DatasetPart, augment: Any, world: World) -> Any:
        devices.append(world.device)
        return embed_items(model, part, augment, world)

    monkeypatch.setattr("trainables.distributed.world.default_device", lambda: gpu)
    monkeypatch.setattr("trainables.training.context.compute_features", record_features)
    monkeypatch.setattr("trainables.training.baseline.embed_on_device", record_embedding)
    for gpus, expected in ((1, gpu), (0.25, gpu), (0, cpu)):
        spec = make_spec("triplet", resources={"gpus_per_trial": gpus})
        devices.clear()
        frozen_context = open_context(
            GLYPHS,
            {**CONV4, "frozen": True},
            cache_dir=tmp_path,
            progress=lambda *call: progress_calls.append(call),
        )
        assert TrialTrainer(spec, frozen_context).replicas[0].world.device == expected
        rows = [untrained_metrics(spec, context) for context in (frozen_context, glyphs_context)]
        # Features once for the trial and the baseline, and the embeddings of both baselines.
        assert devices == [expected] * 3
        # Both backbones start from the same seed.
        assert rows[0] == pytest.approx(rows[1], abs=1e-6)
    assert progress_calls.count(("features-conv4", 1200, 1200)) == 1, "computed once"
