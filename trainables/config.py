"""Configuration of a trial: training hyperparameters and the trial specification.

A `TrialSpec` is the only input of a trial. It is sent between processes and machines as JSON, so a
trial can be restarted on any node from its spec and its last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from trainables.utils.precision_names import Precision, PrecisionSetting
from trainables.utils.suggestions import unknown_name_error

ParamValue = bool | int | float | str
Split = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Training hyperparameters, each fixed for a study or searched in a loss's search space.

    Args:
        epochs: Number of epochs of a complete trial.
        batch_size: Images per step, over all ranks.
        images_per_class: Images of each class in a class-balanced batch; 0 shuffles instead.
        backbone_lr: Learning rate of the backbone.
        head_lr: Learning rate of the embedding layer.
        proxy_lr: Learning rate of the loss's proxies.
        weight_decay: Decoupled weight decay of backbone, head and proxies (as in the papers).
        adam_eps: Adam's epsilon. It determines what a proxy learning rate means, because proxy
            gradients can be as small as epsilon.
        clip_grad: Absolute value to which each gradient entry is clipped; 0 disables clipping.
        lr_decay: `cosine` to zero over `epochs`, `step` (x 0.1 after half and three quarters), or
            `none`.
        warmup_epochs: Number of first epochs in which the backbone does not train.
        bn_freeze: What is frozen in the backbone's batch norm: `none`, `stats` (running statistics
            are used and not updated), or `all` (the affine weights do not train either).
        pooling: Pooling of the feature map: `avg`, `max`, or their sum `avg+max`.
        layer_norm: Layer norm without affine weights before the embedding layer.
        embedding_dim: Size of the embedding.
        augment: Augmentation preset of `trainables.data.augment`.
        negative_share: Fraction of the classes absent from a batch that a proxy loss uses as
            negatives, resampled at each step; 1 uses all. Saves time with very many classes.
        precision: Precision of backbone and embedding layer: `bf16`, `tf32`, `fp32`, or `auto`
            (bf16 on GPUs that have it, fp32 elsewhere). Losses and metrics are always fp32.
        micro_batch: Images of a batch, on each rank, that are in memory at a time; the gradient is
            that of the whole batch. `auto` starts with all of them and halves the number when the
            GPU runs out of memory.
        per_micro_batch_norm: Whether micro-batches are allowed with a batch norm that trains; its
            statistics are then those of each micro-batch, which changes the training.
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
    precision: PrecisionSetting = "auto"
    micro_batch: Literal["auto"] | int = "auto"
    per_micro_batch_norm: bool = False

    def __post_init__(self) -> None:
        if self.micro_batch != "auto" and self.micro_batch < 1:
            raise ValueError(f"`micro_batch >= 1` must hold, but got {self.micro_batch}")
        if self.negative_share > 1:
            raise ValueError(f"`negative_share <= 1` must hold, but got {self.negative_share}")
        for name, rule in _LOWER_BOUNDS.items():
            value = getattr(self, name)
            low, inclusive = rule
            if value < low or (value == low and not inclusive):
                sign = ">=" if inclusive else ">"
                raise ValueError(f"`{name} {sign} {low:g}` must hold, but got {name}={value}")


_LOWER_BOUNDS: Mapping[str, tuple[float, bool]] = types.MappingProxyType(
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


_DEFAULTS_OUTSIDE_KEY = types.MappingProxyType({"precision": "fp32", "per_micro_batch_norm": False})


def parse_settings(values: Mapping[str, Any]) -> TrainingSettings:
    """Return settings from values by name, with defaults for missing ones.

    Raises:
        ValueError: If a name is unknown, or a value has the wrong type or is out of range.
    """
    hints = typing.get_type_hints(TrainingSettings)
    known = {f.name for f in fields(TrainingSettings)}
    clean: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_name_error("training hyperparameter", name, known)
        clean[name] = _coerce_value(name, hints[name], value)
    return TrainingSettings(**clean)


def _coerce_value(name: str, hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) is typing.Union:
        choices, other = typing.get_args(hint)
        return value if value in typing.get_args(choices) else _coerce_value(name, other, value)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ValueError(f"`{name}` must be one of {', '.join(choices)}, but got {value!r}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not hint:
        raise ValueError(f"`{name}` must be of type {hint.__name__}, but got {value!r}")
    if hint is float and not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, but got {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """Specification of one trial: loss, data, backbone, settings and checkpoint location.

    Args:
        trial: Key within the study; names the checkpoint.
        loss: Name of the loss in the registry.
        loss_knobs: Hyperparameters of the loss.
        settings: Training hyperparameters.
        seed: Seed of the first replica; replica i uses `seed + i`.
        replicas: Number of seeds trained inside this trial; the score is their mean.
        split: `validation` trains on part of the training classes and scores the rest; `test`
            trains on all of them and scores the test classes.
        folds: Number of validation folds (ignored for `test`).
        objective: Name of the metric that is the trial's score.
        recall_at: Values of K for Recall@K.
        nmi: Whether normalised mutual information of a clustering is computed too.
        dataset: Name and options of the data set.
        backbone: Name and options of the backbone; empty if the data set holds features.
        cache_dir: Directory of decoded data and features on the node that runs the trial.
        checkpoint_dir: Directory or S3 prefix of the trial's checkpoint; empty to write none.
        checkpoint_every: Epochs between checkpoints; `auto` decides by time (see
            `trainables.training.checkpoint_writer`).
        threads: CPU threads of each rank; 0 leaves torch's default.
        resources: Resources of the trial: `ranks_per_trial`, `nodes_per_trial`,
            `cpus_per_trial`, `gpus_per_trial`, and `shard_proxies`.
    """

    trial: str
    loss: str
    loss_knobs: Mapping[str, ParamValue]
    settings: TrainingSettings
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
    checkpoint_every: int | Literal["auto"] = "auto"
    threads: int = 0
    resources: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain JSON types."""
        return asdict(self)

    def training_key(self, precision: Precision = "fp32") -> str:
        """Return a hash of everything that affects the trained weights.

        Trials that differ only in name, location, threads or resources have the same key.

        Args:
            precision: What `settings.precision` is on the device of the trial.
        """
        placement = ("trial", "cache_dir", "checkpoint_dir", "checkpoint_every", "threads")
        values = {k: v for k, v in asdict(self).items() if k not in (*placement, "resources")}
        settings = values["settings"]
        settings["precision"] = precision
        if not settings["per_micro_batch_norm"]:
            del settings["micro_batch"]  # without effect on the weights
        # Keys of checkpoints from before these settings existed stay valid.
        for name, default in _DEFAULTS_OUTSIDE_KEY.items():
            if settings.get(name) == default:
                del settings[name]
        text = json.dumps(_convert_ints_to_floats(values), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialSpec:
        """Return the spec that `to_dict` converted."""
        values = dict(data)
        values["settings"] = parse_settings(values["settings"])
        values["recall_at"] = tuple(values["recall_at"])
        return cls(**values)


def _convert_ints_to_floats(value: Any) -> Any:
    """Return `value` with ints as floats: the type depends on where a value was stored."""
    if isinstance(value, Mapping):
        return {str(key): _convert_ints_to_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_ints_to_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
