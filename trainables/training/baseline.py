"""Metrics of the untrained backbone, the baseline of every study."""

from __future__ import annotations

import torch

from trainables.config import TrialSpec
from trainables.distributed.world import SingleProcessWorld, World, trial_device
from trainables.models.embedding import on_device, pool_features
from trainables.training.context import TrainingContext, untrained_backbone
from trainables.training.evaluation import embed_on_device, score_embeddings
from trainables.training.tasks import build_fold_tasks
from trainables.training.trial_trainer import average_metrics
from trainables.utils.device import configure_device
from trainables.utils.precision import autocast_model, resolve_precision
from trainables.utils.precision_names import Precision


@torch.no_grad()
def untrained_metrics(
    spec: TrialSpec, context: TrainingContext, world: World | None = None
) -> dict[str, float]:
    """Return the metrics of the backbone before any training, as a baseline for trials.

    Args:
        spec: The trial whose data, split and metrics to use.
        context: Data set and backbone.
        world: The ranks that share the work; None for a single process, on a GPU if the trial has
            one.
    """
    world = world or SingleProcessWorld(trial_device(spec.resources))
    # This computes all features of a frozen backbone, which the trials need anyway.
    precision = resolve_precision(spec.settings.precision, world.device)
    configure_device(world.device, precision, spec.resources)
    data = context.prepare_data(spec.settings.pooling, world.device, precision)
    backbone = untrained_backbone(context) if data.train.kind == "images" else None
    augment = context.build_transform("none", backbone) if backbone else None
    model = _PooledBackbone(backbone, spec.settings.pooling, precision)
    with on_device(model, world.device):
        fold_metrics = [
            score_embeddings(
                embed_on_device(model, task.evaluation, augment, world),
                task.evaluation,
                spec,
                world,
            )
            for task in build_fold_tasks(data, spec.split, spec.folds)
        ]
    return average_metrics(fold_metrics)


class _PooledBackbone(torch.nn.Module):
    """Model without embedding layer: pooled features of unit length."""

    def __init__(
        self, backbone: torch.nn.Module | None, pooling: str, precision: Precision
    ) -> None:
        super().__init__()
        self.backbone, self.pooling, self.precision = backbone, pooling, precision

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        features = items
        if self.backbone is not None:
            with autocast_model(self.precision, items.device):
                features = pool_features(self.backbone(items), self.pooling)
        return torch.nn.functional.normalize(features.float(), dim=-1)
