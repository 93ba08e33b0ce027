"""Trained networks: weights of finished trials, read from their checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from study.runner.context import RunContext
from trainables.config import TrialSpec
from trainables.training.restored_network import load_network_weights

CHECKPOINT_UNREADABLE_MESSAGE = (
    "the checkpoint of {} cannot be read here; its node may be gone (set storage.checkpoints to a "
    "location that all nodes share)"
)


def load_trained_weights(spec: TrialSpec) -> Mapping[str, Any] | None:
    """Return the weights of a trial's network; None if its checkpoint cannot be read."""
    with contextlib.suppress(OSError):  # S3 does not answer
        return load_network_weights(spec)
    return None


def iter_gallery_networks(
    run_context: RunContext,
) -> Iterator[tuple[str, TrialSpec, Mapping[str, Any]]]:
    """Yield each loss that gets a gallery, with its best trial and that network's weights."""
    if run_context.training.dataset.train.kind != "images":
        return
    for loss in run_context.plan.losses:
        best = run_context.scheduler.get_incumbent(loss)
        if best is not None:
            spec = run_context.build_trial_spec(best)
            weights = load_trained_weights(spec)
            if weights is not None:
                yield loss, spec, weights
