"""What turns images into feature maps: any timm model under one contract."""

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

from trainables.backbones.bn_inception import BNInception
from trainables.backbones.conv4 import Conv4
from trainables.names import unknown_name
from trainables.vision import import_torchvision
from trainables.weights import WeightReport, load_weights

BNFreeze = Literal["none", "stats", "all"]
BN_FREEZE: tuple[BNFreeze, ...] = ("none", "stats", "all")
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

OWN_MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "conv4": (
        Conv4,
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


class Backbone(nn.Module):
    """A timm model whose forward gives the last feature map, for every kind of model.

    `forward`: float images (N, in_channels, H, W), normalised with `mean` and `std`, to
    (N, num_features, h, w). Of token models (ViT) it is the patch tokens laid out on their grid,
    class and register tokens left out, so that pooling means the same for all.

    Args:
        model: The timm model, without classifier and pooling.
        layout: How its features lie: "NCHW", "NHWC" or "NLC" (tokens).
        frozen: No weight trains and the module stays in evaluation mode.
        bn_freeze: "stats" keeps batch-norm statistics fixed, "all" its weights too.

    Attributes:
        num_features: Channels of the feature map.
        mean, std: Per input channel, of pixels scaled to 0..1.
        image_size: The size it was built for.
        weight_report: What a local weights file filled; None without one.
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
        """Images (N, in_channels, H, W) to features (N, num_features, h, w)."""
        images = images.contiguous(memory_format=torch.channels_last)
        features: Tensor = cast(Any, self.model).forward_features(images)
        if self.layout == "NHWC":
            return features.permute(0, 3, 1, 2)
        if self.layout == "NLC":
            tokens = features[:, _prefix_tokens(self.model, features.shape[1]) :]
            n_tokens = tokens.shape[1]
            height, width = _grid(self.model, n_tokens) or (n_tokens, 1)
            # By their shape, not len(): an exported program must take any number of images.
            return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, height, width)
        return features

    def freeze_batch_norm(self, mode: BNFreeze) -> None:
        """Choose anew what of batch norm is fixed, e.g. on a copy of a pretrained backbone."""
        if mode not in BN_FREEZE:
            raise unknown_name("bn_freeze", mode, BN_FREEZE)
        self.bn_freeze = mode
        for norm in self._batch_norms():
            norm.requires_grad_(mode != "all" and not self.frozen)
        self.train()

    def train(self, mode: bool = True) -> Backbone:
        """Training mode, less what is frozen."""
        super().train(mode and not self.frozen)
        if self.bn_freeze != "none":
            for norm in self._batch_norms():
                norm.eval()
        return self

    def _batch_norms(self) -> list[nn.Module]:
        return [m for m in self.modules() if isinstance(m, BATCH_NORMS)]


def build_backbone(
    name: str,
    *,
    in_channels: int,
    image_size: int,
    pretrained: bool | str | os.PathLike[str] = False,
    frozen: bool = False,
    bn_freeze: BNFreeze = "none",
) -> Backbone:
    """The backbone of a study file.

    Initial weights come from torch's global generator; seed it, or use `torch.random.fork_rng`.

    Args:
        name: `conv4`, `bn_inception` or any model name of timm.
        pretrained: False, True (timm's published weights, downloaded by timm), or the path of a
            local .pth or .safetensors file; see `Backbone.weight_report` for what fitted.
    """
    base, _, tag = name.partition(".")
    if base not in backbone_names():
        raise unknown_name("backbone", name, backbone_names())
    if image_size < 1 or in_channels < 1:
        raise ValueError(
            f"image size and channels must be positive, got {image_size=}, {in_channels=}."
        )
    if base in OWN_MODELS and (pretrained is True or tag):
        raise ValueError(f"timm has no published weights for {name!r}; name a local weights file.")
    settings = {"pretrained": pretrained is True, "in_chans": in_channels, "num_classes": 0}
    model = _create(name, **settings)
    shape, error = _feature_shape(model, in_channels, image_size)
    if shape is None:  # models with position embeddings are built for one size
        try:
            model = _create(name, img_size=image_size, **settings)
            shape, error = _feature_shape(model, in_channels, image_size)
        except TypeError:
            pass  # it takes no such setting: the first error tells more
    if shape is None:
        raise ValueError(f"{name!r} cannot take {image_size} px images: {error}.")
    layout, num_features = _layout(shape, int(cast(int, model.num_features)))
    report = None
    if not isinstance(pretrained, bool):
        report = load_weights(model, Path(pretrained), _adapted)
        if frozen and not report.fills_backbone:
            raise ValueError(f"frozen: true needs every weight from the file, but {report}.")
    config = cast(dict[str, Any], model.pretrained_cfg or {})
    mean, std = (_per_channel(config.get(key), in_channels) for key in ("mean", "std"))
    return Backbone(
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


def backbone_names() -> list[str]:
    """Every name that `build_backbone` knows: timm's models and ours, sorted."""
    return cast(list[str], _timm().list_models())


def _create(name: str, **settings: Any) -> nn.Module:
    timm = _timm()
    try:
        try:
            model = timm.create_model(name, global_pool="", **settings)
        except (AssertionError, TypeError) as error:
            if "img_size" in str(error):
                raise
            model = timm.create_model(name, **settings)  # a few cannot go without their pooling
    except TypeError:
        raise
    except Exception as error:  # an unknown tag, or the hub's many errors
        raise ValueError(f"timm cannot build {name!r}: {_first_line(error)}") from error
    return cast(nn.Module, model)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _timm() -> ModuleType:
    """timm with our models registered; torchvision first, since timm imports it."""
    import_torchvision()
    import timm
    from timm.models import register_model
    from timm.models._registry import is_model

    for name, (build, config) in OWN_MODELS.items():
        if not is_model(name):
            register_model(_entrypoint(name, build, config))
    return cast(ModuleType, timm)


def _entrypoint(
    name: str, build: Callable[..., nn.Module], config: dict[str, Any]
) -> Callable[..., nn.Module]:
    """A constructor in the form that timm's registry takes: named as the model, in this module."""

    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        if pretrained:
            raise ValueError(f"timm has no published weights for {name!r}.")
        kwargs.pop("pretrained_cfg", None)
        kwargs.pop("pretrained_cfg_overlay", None)
        kwargs.pop("cache_dir", None)
        return build(pretrained_cfg=dict(config), **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__module__ = __name__
    return entrypoint


def _feature_shape(
    model: nn.Module, in_channels: int, image_size: int
) -> tuple[torch.Size | None, str]:
    """Shape of the features of one image, or why the model cannot take it."""
    was_training = model.training
    model.eval()  # batch-norm statistics must not see the probe
    try:
        with torch.no_grad():
            probe = torch.zeros(1, in_channels, image_size, image_size)
            features = cast(Any, model).forward_features(probe)
    except (AssertionError, RuntimeError, ValueError) as error:
        return None, _first_line(error)
    finally:
        model.train(was_training)
    if not isinstance(features, Tensor) or features.ndim not in (3, 4) or 0 in features.shape:
        return None, "it gives no feature map"
    return features.shape, ""


def _layout(shape: torch.Size, num_features: int) -> tuple[Literal["NCHW", "NHWC", "NLC"], int]:
    if len(shape) == 3:
        return "NLC", shape[2]
    if shape[3] == num_features and shape[1] != num_features:
        return "NHWC", shape[3]
    return "NCHW", shape[1]


def _prefix_tokens(model: nn.Module, n_tokens: int) -> int:
    """How many tokens before the patches are none (class, registers); not all models say it."""
    known = getattr(model, "num_prefix_tokens", None)
    if known is not None:
        return int(known)
    lacks_grid, rest_has_one = not _grid(model, n_tokens), bool(_grid(model, n_tokens - 1))
    return 1 if lacks_grid and rest_has_one else 0


def _grid(model: nn.Module, n_tokens: int) -> tuple[int, int] | None:
    """Rows and columns of so many patches of a square picture, if they fill some."""
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if grid is not None and grid[0] * grid[1] == n_tokens:
        return int(grid[0]), int(grid[1])
    side = round(n_tokens**0.5)
    return (side, side) if side * side == n_tokens else None


def _adapted(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file's weights for this model's channels and size, as timm adapts those it publishes."""
    from timm.models import adapt_input_conv

    own = model.state_dict()
    others = [n for n in given if n in own and given[n].shape != own[n].shape]
    found = dict(given)
    resample = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if others and resample is not None:
        # It may also rename, or fail on names it does not expect: only new shapes are taken.
        with contextlib.suppress(Exception), torch.no_grad():
            sized = resample(dict(given), model)
            found |= {n: sized[n] for n in others if n in sized and sized[n].shape == own[n].shape}
    config = cast(dict[str, Any], model.pretrained_cfg or {})
    first = config.get("first_conv") or ()
    for name in [f"{n}.weight" for n in ((first,) if isinstance(first, str) else first)]:
        if name in others and found[name].ndim == 4 and found[name].shape[1] % 3 == 0:
            with contextlib.suppress(NotImplementedError):
                found[name] = adapt_input_conv(own[name].shape[1], found[name])
    return found


def _per_channel(values: Any, in_channels: int) -> tuple[float, ...]:
    """The model's mean or std for this many channels: kept for 3, else their average."""
    channels = tuple(float(v) for v in values) if values is not None else (0.5,)
    if len(channels) == in_channels:
        return channels
    return (sum(channels) / len(channels),) * in_channels
