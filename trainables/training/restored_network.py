"""Trained networks restored from checkpoints, without their optimiser and loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.config import TrialSpec
from trainables.distributed.world import SingleProcessWorld, trial_device
from trainables.models.backbone import TimmBackbone
from trainables.models.embedding import EmbeddingModel, on_device
from trainables.training.checkpoint_exchange import load_newest_checkpoint
from trainables.training.context import TrainingContext
from trainables.training.evaluation import embed_items
from trainables.training.tasks import build_fold_tasks
from trainables.utils.device import configure_device
from trainables.utils.precision import resolve_precision


def load_network_weights(spec: TrialSpec) -> Mapping[str, Any] | None:
    """Return the weights of a trial's first replica from its checkpoint; None without one.

    Raises:
        OSError: If S3 or the disk does not respond.
    """
    payload = load_newest_checkpoint(spec, SingleProcessWorld(torch.device("cpu")))
    return None if payload is None else payload["replicas"][0]["model"]


def restore_network(
    spec: TrialSpec, context: TrainingContext, weights: Mapping[str, Any]
) -> EmbeddingModel:
    """Return the network with these weights, on the CPU.

    With a frozen backbone the network takes the backbone's features as input.
    """
    backbone = context.new_backbone(seed=0, bn_freeze=spec.settings.bn_freeze)
    source = backbone or context.prototype
    width = source.num_features if source else int(context.dataset.train.items.shape[1])
    network = EmbeddingModel(backbone, width, spec.settings)
    network.load_state_dict(dict(weights))
    return network


def embed_validation_items(
    spec: TrialSpec, context: TrainingContext, weights: Mapping[str, Any]
) -> NDArray[np.float32]:
    """Return embeddings of the first fold's validation items by the network with these weights."""
    world = SingleProcessWorld(trial_device(spec.resources))
    network = restore_network(spec, context, weights)
    precision = resolve_precision(spec.settings.precision, world.device)
    network.precision = precision
    configure_device(world.device, precision, spec.resources)
    data = context.prepare_data(spec.settings.pooling, world.device, precision)
    part = build_fold_tasks(data, "validation", spec.folds)[0].evaluation
    backbone = network.backbone
    augment = None
    if isinstance(backbone, TimmBackbone):
        augment = context.build_transform(spec.settings.augment, backbone)
    with on_device(network, world.device):
        return embed_items(network, part, augment, world)
