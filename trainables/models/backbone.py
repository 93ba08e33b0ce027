"""Backbones: any timm model, or one of ours, as a module from images to a feature map.

This is the only module that imports timm.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from trainables.models.bn_inception import BNInception
from trainables.models.conv4 import Conv4Net
from trainables.models.pretrained_weights import WeightReport, load_weights
from trainables.utils.suggestions import unknown_name_error
from trainables.utils.torchvision_import import import_torchvision

BNFreeze = Literal["none", "stats", "all"]
BN_FREEZE_MODES: tuple[BNFreeze, ...] = ("none", "stats", "all")
BATCH_NORM_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

OWN_MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "conv4": (
        Conv4Net,
        {
            "input_size": (3, 28, 28),
            "mean": (0.5,) * 3,
            "std": (0.5,) * 3,
            "first_conv": "blocks.0",
        },
    ),
    "bn_inception": (
        BNInception,
        {
            "input_size": (3, 224, 224),
            "mean": (128 / 255, 117 / 255, 104 / 255),
            "std": (1 / 255,) * 3,
            "first_conv": "conv1_7x7_s2",
        },
    ),
}


class TimmBackbone(nn.Module):
    """A timm model whose output is its last feature map.

    `forward` maps float images (N, in_channels, H, W), normalised with `mean` and `std`, to
    features (N, num_features, h, w). For token models (ViT) these are the patch tokens on their
    grid without class and register tokens, so that pooling means the same for all models.

    Args:
        model: The timm model, without classifier and pooling.
        name: Name of the model.
        layout: Layout of the model's features: "NCHW", "NHWC" or "NLC" (tokens).
        num_features: Channels of the feature map.
        image_size: Side of the input images in pixels.
        mean: Mean per input channel, of pixels scaled to 0..1.
        std: Standard deviation per input channel, of pixels scaled to 0..1.
        frozen: Whether no weight trains and the module stays in evaluation mode.
        bn_freeze: "stats" fixes batch-norm statistics, "all" fixes the affine weights too.
        weight_report: Report on the local weights file; None without a file.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        layout: Literal["NCHW", "NHWC", "NLC"],
        num_features: int,
        image_size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        frozen: bool = False,
        bn_freeze: BNFreeze = "none",
        weight_report: WeightReport | None = None,
    ) -> None:
        super().__init__()
        # Channels-last is the fast order of convolutions on CPUs and tensor cores.
        self.model = cast(Any, model).to(memory_format=torch.channels_last)
        self.name, self.layout, self.num_features = name, layout, num_features
        self.image_size, self.mean, self.std = image_size, mean, std
        self.frozen, self.weight_report = frozen, weight_report
        if frozen:
            self.requires_grad_(False)
        self.bn_freeze: BNFreeze = "none"
        self.freeze_batch_norm(bn_freeze)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (N, num_features, h, w) of images (N, in_channels, H, W)."""
        images = images.contiguous(memory_format=torch.channels_last)
        features: Tensor = cast(Any, self.model).forward_features(images)
        if self.layout == "NHWC":
            return features.permute(0, 3, 1, 2)
        if self.layout == "NLC":
            tokens = features[:, _count_prefix_tokens(self.model, features.shape[1]) :]
            n_tokens = tokens.shape[1]
            height, width = _patch_grid(self.model, n_tokens) or (n_tokens, 1)
            # shape[0], not len(): an exported program must accept any number of images.
            return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, height, width)
        return features

    def freeze_batch_norm(self, mode: BNFreeze) -> None:
        """Set what is fixed in batch norm, e.g. on a copy of a pretrained backbone."""
        if mode not in BN_FREEZE_MODES:
            raise unknown_name_error("bn_freeze", mode, BN_FREEZE_MODES)
        self.bn_freeze = mode
        for norm in self._batch_norm_layers():
            norm.requires_grad_(mode != "all" and not self.frozen)
        self.train()

    def train(self, mode: bool = True) -> TimmBackbone:
        """Set training mode for everything that is not frozen."""
        super().train(mode and not self.frozen)
        if self.bn_freeze != "none":
            for norm in self._batch_norm_layers():
                norm.eval()
        return self

    def _batch_norm_layers(self) -> list[nn.Module]:
        return [m for m in self.modules() if isinstance(m, BATCH_NORM_TYPES)]


def build_backbone(
    name: str,
    *,
    in_channels: int,
    image_size: int,
    pretrained: bool | str | os.PathLike[str] = False,
    frozen: bool = False,
    bn_freeze: BNFreeze = "none",
) -> TimmBackbone:
    """Build a backbone by name.

    Initial weights are drawn from torch's global generator; seed it, or use
    `torch.random.fork_rng`.

    Args:
        name: `conv4`, `bn_inception` or any model name of timm.
        in_channels: Channels of the input images.
        image_size: Side of the input images in pixels.
        pretrained: False, True (published weights, downloaded by timm), or the path of a local
            .pth or .safetensors file; `TimmBackbone.weight_report` lists what was loaded.
        frozen: Whether no weight trains and the module stays in evaluation mode.
        bn_freeze: "stats" fixes batch-norm statistics, "all" fixes the affine weights too.

    Raises:
        ValueError: If the name is unknown, the model does not accept the images, or the weights
            cannot be loaded.
    """
    base, _, tag = name.partition(".")
    if base not in list_backbone_names():
        raise unknown_name_error("backbone", name, list_backbone_names())
    if image_size < 1 or in_channels < 1:
        raise ValueError(
            f"image size and channels must be positive, but got {image_size=}, {in_channels=}"
        )
    if base in OWN_MODELS and (pretrained is True or tag):
        raise ValueError(f"timm has no published weights for {name!r}; give a local weights file")
    settings = {"pretrained": pretrained is True, "in_chans": in_channels, "num_classes": 0}
    model = _create_timm_model(name, **settings)
    shape, error = _probe_feature_shape(model, in_channels, image_size)
    if shape is None:  # models with position embeddings must be built for the image size
        try:
            model = _create_timm_model(name, img_size=image_size, **settings)
            shape, error = _probe_feature_shape(model, in_channels, image_size)
        except TypeError:
            pass  # the model does not have this argument; the first error is more helpful
    if shape is None:
        raise ValueError(f"{name!r} does not accept {image_size} px images: {error}")
    layout, num_features = _infer_layout(shape, int(cast(int, model.num_features)))
    report = None
    if not isinstance(pretrained, bool):
        report = load_weights(model, Path(pretrained), _adapt_weights)
        if frozen and not report.fills_backbone:
            raise ValueError(f"frozen: true requires every weight to be in the file, but {report}")
    config = cast(dict[str, Any], model.pretrained_cfg or {})
    mean, std = (_per_channel_statistics(config.get(key), in_channels) for key in ("mean", "std"))
    return TimmBackbone(
        model,
        name=name,
        layout=layout,
        num_features=num_features,
        image_size=image_size,
        mean=mean,
        std=std,
        frozen=frozen,
        bn_freeze=bn_freeze,
        weight_report=report,
    )


def list_backbone_names() -> list[str]:
    """Return all names that `build_backbone` accepts, sorted: timm's models and ours."""
    return cast(list[str], _import_timm().list_models())


def _create_timm_model(name: str, **settings: Any) -> nn.Module:
    timm = _import_timm()
    try:
        try:
            model = timm.create_model(name, global_pool="", **settings)
        except (AssertionError, TypeError) as error:
            if "img_size" in str(error):
                raise
            model = timm.create_model(name, **settings)  # some models require their pooling
    except TypeError:
        raise
    except Exception as error:  # an unknown tag, or any error of the Hugging Face hub
        raise ValueError(f"timm cannot build {name!r}: {_first_line(error)}") from error
    return cast(nn.Module, model)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _import_timm() -> ModuleType:
    """Import torchvision, then timm, which needs it, and register our models."""
    import_torchvision()
    import timm
    from timm.models import register_model
    from timm.models._registry import is_model

    for name, (build, config) in OWN_MODELS.items():
        if not is_model(name):
            register_model(_make_entrypoint(name, build, config))
    return cast(ModuleType, timm)


def _make_entrypoint(
    name: str, build: Callable[..., nn.Module], config: dict[str, Any]
) -> Callable[..., nn.Module]:
    """Return a constructor for timm's registry: named like the model, in this module."""

    def model_entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        if pretrained:
            raise ValueError(f"timm has no published weights for {name!r}")
        kwargs.pop("pretrained_cfg", None)
        kwargs.pop("pretrained_cfg_overlay", None)
        kwargs.pop("cache_dir", None)
        return build(pretrained_cfg=dict(config), **kwargs)

    model_entrypoint.__name__ = model_entrypoint.__qualname__ = name
    model_entrypoint.__module__ = __name__
    return model_entrypoint


def _probe_feature_shape(
    model: nn.Module, in_channels: int, image_size: int
) -> tuple[torch.Size | None, str]:
    """Return the shape of one image's features, or None and the reason for rejection."""
    was_training = model.training
    model.eval()  # the probe must not change batch-norm statistics
    try:
        with torch.no_grad():
            probe = torch.zeros(1, in_channels, image_size, image_size)
            features = cast(Any, model).forward_features(probe)
    except (AssertionError, RuntimeError, ValueError) as error:
        return None, _first_line(error)
    finally:
        model.train(was_training)
    if not isinstance(features, Tensor) or features.ndim not in (3, 4) or 0 in features.shape:
        return None, "the model returns no feature map"
    return features.shape, ""


def _infer_layout(
    shape: torch.Size, num_features: int
) -> tuple[Literal["NCHW", "NHWC", "NLC"], int]:
    if len(shape) == 3:
        return "NLC", shape[2]
    if shape[3] == num_features and shape[1] != num_features:
        return "NHWC", shape[3]
    return "NCHW", shape[1]


def _count_prefix_tokens(model: nn.Module, n_tokens: int) -> int:
    """Return the number of class and register tokens before the patches.

    Models without this attribute have one if removing it leaves a square grid.
    """
    declared = getattr(model, "num_prefix_tokens", None)
    if declared is not None:
        return int(declared)
    is_grid = _patch_grid(model, n_tokens) is not None
    rest_is_grid = _patch_grid(model, n_tokens - 1) is not None
    return 1 if rest_is_grid and not is_grid else 0


def _patch_grid(model: nn.Module, n_tokens: int) -> tuple[int, int] | None:
    """Return rows and columns of the patches of a square image; None if they form no grid."""
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if grid is not None and grid[0] * grid[1] == n_tokens:
        return int(grid[0]), int(grid[1])
    side = round(n_tokens**0.5)
    return (side, side) if side * side == n_tokens else None


def _adapt_weights(model: nn.Module, file_state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adapt a file's weights to the model's channels and size, as timm adapts its own."""
    from timm.models import adapt_input_conv

    model_state = model.state_dict()
    mismatched = [
        n for n in file_state if n in model_state and file_state[n].shape != model_state[n].shape
    ]
    adapted = dict(file_state)
    resample = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if mismatched and resample is not None:
        # It may also rename weights, or fail on unexpected names: take over new shapes only.
        with contextlib.suppress(Exception), torch.no_grad():
            resized = resample(dict(file_state), model)
            adapted |= {
                n: resized[n]
                for n in mismatched
                if n in resized and resized[n].shape == model_state[n].shape
            }
    config = cast(dict[str, Any], model.pretrained_cfg or {})
    first = config.get("first_conv") or ()
    for name in [f"{n}.weight" for n in ((first,) if isinstance(first, str) else first)]:
        if name in mismatched and adapted[name].ndim == 4 and adapted[name].shape[1] % 3 == 0:
            with contextlib.suppress(NotImplementedError):
                adapted[name] = adapt_input_conv(model_state[name].shape[1], adapted[name])
    return adapted


def _per_channel_statistics(values: Any, in_channels: int) -> tuple[float, ...]:
    """Return mean or std per input channel: the model's own, or their average for each."""
    channels = tuple(float(v) for v in values) if values is not None else (0.5,)
    if len(channels) == in_channels:
        return channels
    return (sum(channels) / len(channels),) * in_channels
