"""Everything a trial is told, as plain values.

A `TrialSpec` is all a trial knows: it crosses process and machine borders as JSON, so a trial can
be started again anywhere from its spec and its last checkpoint.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Value = bool | int | float | str
Split = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The training knobs. Each can be fixed for a study or searched by a loss's space.

    Args:
        epochs: Length of a full trial.
        batch_size: Images per step, over all ranks.
        images_per_class: Class-balanced batches with this many images of each class; 0 shuffles.
        backbone_lr: Learning rate of the backbone.
        head_lr: Learning rate of the embedding layer.
        proxy_lr: Learning rate of everything the loss learns.
        weight_decay: Decoupled, on all groups (the papers decay proxies too).
        adam_eps: Adam's epsilon; a proxy learning rate means nothing without it.
        clip_grad: Clip each gradient value to this; 0 does not clip.
        lr_decay: `cosine` to zero over `epochs`, `step` (x 0.1 after half and three quarters), or
            `none`.
        warmup_epochs: First epochs with a frozen backbone.
        bn_freeze: Batch norm of the backbone: `none`, `stats` (running statistics are used and
            kept), `all` (the affine weights do not train either).
        pooling: Of the feature map: `avg`, `max`, or their sum `avg+max`.
        layer_norm: Layer norm without affine weights before the embedding layer.
        embedding_dim: Size of the embedding.
        augment: A preset of `trainables.data.augment`.
        negative_share: Share of the classes absent from a batch that a proxy loss compares it
            with, drawn anew each step; 1 takes all. For very many classes.
    """

    epochs: int = 20
    batch_size: int = 64
    images_per_class: int = 4
    backbone_lr: float = 1e-3
    head_lr: float = 1e-3
    proxy_lr: float = 1e-2
    weight_decay: float = 1e-4
    adam_eps: float = 1e-8
    clip_grad: float = 10.0
    lr_decay: Literal["none", "step", "cosine"] = "cosine"
    warmup_epochs: int = 0
    bn_freeze: Literal["none", "stats", "all"] = "none"
    pooling: Literal["avg", "max", "avg+max"] = "avg"
    layer_norm: bool = False
    embedding_dim: int = 128
    augment: str = "none"
    negative_share: float = 1.0

    def __post_init__(self) -> None:
        if self.negative_share > 1:
            raise ValueError(f"`negative_share <= 1` must hold, but got {self.negative_share}.")
        for name, rule in _RULES.items():
            value = getattr(self, name)
            low, inclusive = rule
            if value < low or (value == low and not inclusive):
                sign = ">=" if inclusive else ">"
                raise ValueError(f"`{name} {sign} {low:g}` must hold, but got {name}={value}.")


_RULES: Mapping[str, tuple[float, bool]] = types.MappingProxyType(
    {
        "epochs": (1, True),
        "batch_size": (2, True),
        "images_per_class": (0, True),
        "backbone_lr": (0, True),
        "head_lr": (0, True),
        "proxy_lr": (0, True),
        "weight_decay": (0, True),
        "adam_eps": (0, False),
        "clip_grad": (0, True),
        "warmup_epochs": (0, True),
        "embedding_dim": (1, True),
        "negative_share": (0, False),
    }
)


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Settings with defaults for what is not given.

    Raises:
        ValueError: An unknown knob, a value of the wrong type, or one outside its range.
    """
    hints = typing.get_type_hints(Settings)
    known = {f.name for f in fields(Settings)}
    clean: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise ValueError(f"unknown training knob {name!r}; {hint}")
        clean[name] = _typed(name, hints[name], value)
    return Settings(**clean)


def _typed(name: str, hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ValueError(f"`{name}` is one of {', '.join(choices)}, but got {value!r}.")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not hint:
        raise ValueError(f"`{name}` is of type {hint.__name__}, but got {value!r}.")
    if hint is float and not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, but got {value!r}.")
    return value


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial: what to train, on what, and where to keep its checkpoint.

    Args:
        trial: Key within the study; names the checkpoint.
        loss: Registry name.
        loss_knobs: Arguments of the loss.
        settings: Training knobs.
        seed: Seed of the first replica; replica i uses `seed + i`.
        replicas: Seeds trained side by side inside this trial; the score is their mean.
        split: `validation` trains on part of the training classes and scores the rest; `test`
            trains on all of them and scores the test classes.
        folds: Validation folds (ignored for `test`).
        objective: The metric that is the trial's score.
        recall_at: The K of Recall@K.
        nmi: Whether clusters are scored, too.
        dataset: Name and options of the data set.
        backbone: Name and options of the backbone; empty for data that are features.
        cache_dir: Where decoded data and features of this node live.
        checkpoint_dir: Where the trial keeps its checkpoint; empty for none.
        checkpoint_every: Epochs between checkpoints.
        threads: CPU threads of each rank; 0 leaves torch's default.
        resources: What the trial occupies: `ranks_per_trial`, `nodes_per_trial`,
            `cpus_per_trial`, `gpus_per_trial`, and `shard_proxies`.
    """

    trial: str
    loss: str
    loss_knobs: Mapping[str, Value]
    settings: Settings
    seed: int
    dataset: Mapping[str, Any]
    backbone: Mapping[str, Any]
    cache_dir: str
    replicas: int = 1
    split: Split = "validation"
    folds: int = 1
    objective: str = "map_at_r"
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    nmi: bool = False
    checkpoint_dir: str = ""
    checkpoint_every: int = 1
    threads: int = 0
    resources: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    def training_key(self) -> str:
        """A short key that is equal for trials that train the same, wherever and however placed."""
        placed = ("trial", "cache_dir", "checkpoint_dir", "checkpoint_every", "threads")
        told = {k: v for k, v in asdict(self).items() if k not in (*placed, "resources")}
        text = json.dumps(_numbers(told), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialSpec:
        """The inverse of `to_dict`."""
        values = dict(data)
        values["settings"] = settings_from(values["settings"])
        values["recall_at"] = tuple(values["recall_at"])
        return cls(**values)


def _numbers(value: Any) -> Any:
    """The same with 32 and 32.0 made equal: which one it is depends on where a value was kept."""
    if isinstance(value, Mapping):
        return {str(key): _numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
