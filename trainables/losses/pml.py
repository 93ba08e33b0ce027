"""Losses of pytorch-metric-learning, as `pml:ClassName` (an optional extra)."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from trainables.losses.base.hyperparameters import ParamInfo
from trainables.losses.base.proxy_loss import LossSetup, check_batch
from trainables.utils.suggestions import suggest_nearest_name

PML_PREFIX = "pml:"

# Set from the data set and the embedding if the constructor requires them, not by a user.
_CLASS_COUNT_ARGUMENTS = ("num_classes",)
_DIM_ARGUMENTS = ("embedding_size", "descriptors_dim")

# Weights of regularisers. Regularisers are objects, which a study cannot pass, so the weights have
# no effect.
_REGULARIZER_WEIGHT_ARGUMENTS = ("embedding_reg_weight", "weight_reg_weight")

_WRAPPED_LOSS_ARGUMENTS = ("loss", "losses")  # arguments that are losses themselves
_UNUSABLE_LOSSES = {
    "GenericPairLoss": "it is the base of other losses",
    "ManifoldLoss": "it uses no labels",
    "VICRegLoss": "it compares two views of each image and uses no labels",
}


class PmlLoss(nn.Module):
    """A loss of pytorch-metric-learning; its parameters are trained like proxies."""

    def __init__(self, setup: LossSetup, loss: nn.Module) -> None:
        super().__init__()
        self.n_classes, self.dim, self.loss = setup.n_classes, setup.dim, loss

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        value: Tensor = self.loss(embeddings, labels)
        return value


def build_pml_loss(name: str, setup: LossSetup, params: dict[str, Any]) -> PmlLoss:
    """Build the loss `pml:ClassName`; its hyperparameters are the arguments of its constructor.

    Raises:
        ValueError: The library is not installed, has no such loss, or rejects the arguments.
    """
    cls = _find_loss_class(name)
    sizes = dict.fromkeys(_CLASS_COUNT_ARGUMENTS, setup.n_classes) | dict.fromkeys(
        _DIM_ARGUMENTS, setup.dim
    )
    own = _constructor_arguments(cls)
    # A sampler may pass 4.0 where the library expects a count.
    params = {
        k: int(v) if type(own[k].default) is int and v == int(v) else v for k, v in params.items()
    }
    try:
        loss = cls(**{k: sizes[k] for k in _required_arguments(cls) if k in sizes}, **params)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"{name} rejects {params}: {error}") from error
    return PmlLoss(setup, loss)


def pml_params(name: str) -> dict[str, ParamInfo]:
    """Return the arguments of the constructor and of its bases that are numbers, flags or strings.

    Numbers are typed as floats: a default of `4` does not mean that `4.5` is invalid.
    """
    params = {}
    cls = _find_loss_class(name)
    own = inspect.signature(cls.__init__).parameters
    for parameter in _constructor_arguments(cls).values():
        default, required = parameter.default, parameter.default is inspect.Parameter.empty
        if parameter.name in (
            *_CLASS_COUNT_ARGUMENTS,
            *_DIM_ARGUMENTS,
            *_REGULARIZER_WEIGHT_ARGUMENTS,
        ):
            continue
        # The class passes the arguments that only a base requires.
        if required and parameter.name not in own:
            continue
        if not (required or isinstance(default, bool | int | float | str)):
            continue
        kind = type(default) if isinstance(default, bool | str) else float
        params[parameter.name] = ParamInfo(kind, required, None if required else default)
    return params


def has_proxies(name: str) -> bool:
    """Whether a loss has learned vectors for each class."""
    return bool(_required_arguments(_find_loss_class(name)).intersection(_CLASS_COUNT_ARGUMENTS))


_VARIADIC_KINDS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _required_arguments(cls: type[nn.Module]) -> set[str]:
    """Return the names of the arguments that a constructor requires."""
    arguments = _constructor_arguments(cls).values()
    return {argument.name for argument in arguments if argument.default is inspect.Parameter.empty}


def _constructor_arguments(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a constructor, including those that it passes on to its bases."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is nn.Module:
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        for p in parameters:
            if p.kind not in _VARIADIC_KINDS:
                arguments.setdefault(p.name, p)
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return arguments


def _find_loss_class(name: str) -> type[nn.Module]:
    library = _import_pml_losses()
    title = name.removeprefix(PML_PREFIX)
    names = sorted(
        key
        for key, value in vars(library).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and not key.startswith("Base")
    )
    if title not in names:
        hint = suggest_nearest_name(name, [PML_PREFIX + known_name for known_name in names])
        raise ValueError(f"pytorch-metric-learning has no loss {title!r}; {hint}")
    loss_class: type[nn.Module] = getattr(library, title)
    reason = _UNUSABLE_LOSSES.get(title)
    if _required_arguments(loss_class).intersection(_WRAPPED_LOSS_ARGUMENTS):
        reason = "it wraps a loss object, which a study file cannot pass"
    if reason is not None:
        raise ValueError(f"{name} cannot be used: {reason}")
    return loss_class


def _import_pml_losses() -> ModuleType:
    try:
        return importlib.import_module("pytorch_metric_learning.losses")
    except ModuleNotFoundError as error:
        raise ValueError(
            "losses `pml:...` need pytorch-metric-learning, which is not installed; "
            "run: pip install 'dml-study[pml]'"
        ) from error
