"""Evaluation of a network: embeddings of a data set part and their retrieval metrics."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.config import TrialSpec
from trainables.data.augment import ImageTransform
from trainables.data.dataset import DatasetPart
from trainables.data.feed import BatchFeed, HostFeed, StagedFeed
from trainables.distributed.world import SingleProcessWorld, World, rank_slice
from trainables.retrieval.concentration import concentration_step, similarity_concentration
from trainables.retrieval.metrics import compute_nmi, evaluate
from trainables.training.errors import DivergedError
from trainables.utils.device import release_memory
from trainables.utils.device_errors import is_device_memory_full

EVALUATION_BATCH_SIZE = 512


def embed_items(
    model: nn.Module,
    part: DatasetPart,
    augment: ImageTransform | None,
    world: World | None = None,
) -> NDArray[np.float32]:
    """Return the model's embeddings of all items of a part, on every rank."""
    array: NDArray[np.float32] = embed_on_device(model, part, augment, world).cpu().numpy()
    return array


@torch.no_grad()
def embed_on_device(
    model: nn.Module,
    part: DatasetPart,
    augment: ImageTransform | None,
    world: World | None = None,
    *,
    feed: BatchFeed | None = None,
) -> Tensor:
    """Return the model's embeddings of all items of a part, float32, on the device of each rank.

    Each rank embeds complete batches, so the result is bitwise equal to that of a single process.

    Args:
        model: The network.
        part: Items to embed.
        augment: Transform of images; None for features.
        world: The ranks that share the work; None for a single process.
        feed: Feed of the items; None reads them once.
    """
    world = world or SingleProcessWorld()
    if feed is None:
        is_host = world.device.type == "cpu"
        feed = HostFeed(part, augment) if is_host else StagedFeed(part, augment, world.device)
    model.eval()
    rows = np.arange(len(part))
    batches = [
        rows[start : start + EVALUATION_BATCH_SIZE]
        for start in range(0, len(part), EVALUATION_BATCH_SIZE)
    ]
    own = batches[rank_slice(len(batches), world.rank, world.size)]
    first = next(iter(model.parameters()), torch.empty(0))
    pieces = []
    for inputs in feed.iter_evaluation_inputs(own):
        pieces.append(_embed_in_parts(model, inputs.to(world.device, first.dtype)).float())
        world.heartbeat.beat()
    if world.size == 1:
        return torch.cat(pieces)
    gathered = _gather_embeddings(world, pieces, len(part), len(batches))
    world.heartbeat.suspend()  # metrics and checkpoints may take any time
    return gathered


def _embed_in_parts(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the embeddings of a batch, of one half after the other if memory does not suffice."""
    try:
        embedded: Tensor = model(inputs)
        return embedded
    except RuntimeError as error:
        if not is_device_memory_full(error) or len(inputs) < 2:
            raise
    release_memory(inputs.device)
    halves = torch.split(inputs, -(-len(inputs) // 2))
    return torch.cat([_embed_in_parts(model, half) for half in halves])


def _gather_embeddings(world: World, pieces: list[Tensor], total: int, n_batches: int) -> Tensor:
    """Gather the embeddings of all ranks' batches; the last batch may be smaller."""
    width = torch.tensor([float(max((p.shape[1] for p in pieces), default=0))])
    world.all_reduce_max_(width)
    padded = torch.zeros(len(pieces), EVALUATION_BATCH_SIZE, int(width), device=world.device)
    for i, piece in enumerate(pieces):
        padded[i, : len(piece)] = piece
    return world.all_gather(padded, n_batches).flatten(0, 1)[:total]


def score_embeddings(
    vectors: Tensor | NDArray[np.float32],
    part: DatasetPart,
    spec: TrialSpec,
    world: World | None = None,
) -> dict[str, float]:
    """Return retrieval metrics of a part's embeddings.

    Every item is a query against all others, unless the part separates queries from the gallery.

    Args:
        vectors: Embeddings of all items of the part, on any device.
        part: The part, with its labels.
        spec: The trial, whose `recall_at` and `nmi` are used.
        world: The ranks that share the work; None for a single process.

    Raises:
        DivergedError: If an embedding is NaN or infinite.
    """
    vectors = torch.as_tensor(vectors)
    if not bool(torch.isfinite(vectors).all()):
        raise DivergedError("training diverged: some embeddings are NaN or infinite")
    if part.is_query is None:
        metrics = evaluate(vectors, part.labels, ks=spec.recall_at, world=world)
    else:
        query = torch.from_numpy(part.is_query).to(vectors.device)
        metrics = evaluate(
            vectors[query],
            part.labels[part.is_query],
            ks=spec.recall_at,
            gallery=vectors[~query],
            gallery_labels=part.labels[~part.is_query],
            world=world,
        )
    return {**metrics, **_score_on_host(vectors, part, spec, world)}


def _score_on_host(
    vectors: Tensor, part: DatasetPart, spec: TrialSpec, world: World | None
) -> dict[str, float]:
    """Return the metrics that are computed on the CPU, by the first rank alone."""
    names = ["similarity_concentration", *(["nmi"] if spec.nmi else [])]
    values = torch.zeros(len(names), dtype=torch.float64)
    if world is None or world.rank == 0:
        # Only as many items as are compared are sent from the device.
        step = concentration_step(len(vectors))
        values[0] = similarity_concentration(vectors[::step].cpu().numpy(), part.labels[::step])
        if spec.nmi:
            values[1] = compute_nmi(vectors, part.labels)
    if world is not None:
        world.broadcast_(values)
    return dict(zip(names, values.tolist(), strict=True))
