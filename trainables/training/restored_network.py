"""A trained network without its training: what is left of a trial is its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.backbone import Backbone
from trainables.model import EmbeddingModel, placed
from trainables.replica import embed
from trainables.restoring import newest_checkpoint
from trainables.settings import TrialSpec
from trainables.training import split_tasks
from trainables.workbench import Bench
from trainables.world import Alone, trial_device


def network_weights(spec: TrialSpec) -> Mapping[str, Any] | None:
    """The weights of a trial's first network, from its last checkpoint; None without one.

    Raises:
        OSError: S3 does not answer.
    """
    payload = newest_checkpoint(spec, Alone(torch.device("cpu")))
    return None if payload is None else payload["replicas"][0]["model"]


def restored_network(spec: TrialSpec, bench: Bench, weights: Mapping[str, Any]) -> EmbeddingModel:
    """The network of these weights, on the CPU; that of a frozen backbone takes its features."""
    backbone = bench.new_backbone(seed=0, bn_freeze=spec.settings.bn_freeze)
    seen = backbone or bench.prototype
    width = seen.num_features if seen else int(bench.dataset.train.items.shape[1])
    network = EmbeddingModel(backbone, width, spec.settings)
    network.load_state_dict(dict(weights))
    return network


def validation_vectors(
    spec: TrialSpec, bench: Bench, weights: Mapping[str, Any]
) -> NDArray[np.float32]:
    """What the network of these weights makes of the first fold's validation items."""
    world = Alone(trial_device(spec.resources))
    network = restored_network(spec, bench, weights)
    data = bench.data(spec.settings.pooling, world.device)
    part = split_tasks(data, "validation", spec.folds)[0].score
    backbone = network.backbone
    augment = None
    if isinstance(backbone, Backbone):
        augment = bench.augment(spec.settings.augment, backbone)
    with placed(network, world.device):
        return embed(network, part, augment, world)
