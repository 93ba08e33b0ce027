"""Training and evaluation of deep-metric-learning losses.

The names in `__all__` are the public API; other modules are internal and may change::

    from pathlib import Path
    import trainables

    loss = trainables.build_loss("proxy_anchor", n_classes=100, dim=64, alpha=32.0, delta=0.1)
    dataset = trainables.load_dataset("glyphs", cache_dir=Path("cache"))
    metrics = trainables.evaluate(embeddings, labels, ks=(1, 2, 4, 8))

They are imported on first access, so `import trainables` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainables.config import TrainingSettings, TrialSpec
    from trainables.data import DATASETS, load_dataset
    from trainables.losses import LOSSES, build_loss
    from trainables.models.backbone import build_backbone
    from trainables.models.embedding import EmbeddingModel
    from trainables.retrieval.metrics import evaluate
    from trainables.training.context import open_context
    from trainables.training.trial_trainer import TrialTrainer

__all__ = [
    "DATASETS",
    "LOSSES",
    "EmbeddingModel",
    "TrainingSettings",
    "TrialSpec",
    "TrialTrainer",
    "build_backbone",
    "build_loss",
    "evaluate",
    "load_dataset",
    "open_context",
]

_MODULE_BY_NAME = {
    "DATASETS": "trainables.data",
    "LOSSES": "trainables.losses",
    "EmbeddingModel": "trainables.models.embedding",
    "TrainingSettings": "trainables.config",
    "TrialSpec": "trainables.config",
    "TrialTrainer": "trainables.training.trial_trainer",
    "build_backbone": "trainables.models.backbone",
    "build_loss": "trainables.losses",
    "evaluate": "trainables.retrieval.metrics",
    "load_dataset": "trainables.data",
    "open_context": "trainables.training.context",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access (PEP 562)."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the module, including those not imported yet."""
    return sorted({*globals(), *__all__})
