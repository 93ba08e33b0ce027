"""Any loss of pytorch-metric-learning, as `pml:ClassName` (an optional extra)."""

from __future__ import annotations

import difflib
import importlib
import inspect
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from trainables.losses.knobs import KnobInfo
from trainables.losses.proxy_loss import Setup, check_batch

PREFIX = "pml:"

# Filled in from the data set and the embedding where the library requires them, not by a user.
_CLASSES = ("num_classes",)
_DIM = ("embedding_size", "descriptors_dim")

# Weights of regularisers, which are objects: a study cannot give one, so they change nothing.
_REGULARIZED = ("embedding_reg_weight", "weight_reg_weight")

_WRAPPED = ("loss", "losses")  # arguments that are losses themselves
_UNFIT = {
    "GenericPairLoss": "it is the base of other losses",
    "ManifoldLoss": "it uses no labels",
    "VICRegLoss": "it compares two views of each image and uses no labels",
}


class PmlLoss(nn.Module):
    """A loss of pytorch-metric-learning called as ours; its parameters are the proxies' group."""

    def __init__(self, setup: Setup, loss: nn.Module) -> None:
        super().__init__()
        self.n_classes, self.dim, self.loss = setup.n_classes, setup.dim, loss

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        value: Tensor = self.loss(embeddings, labels)
        return value


def build_pml(name: str, setup: Setup, knobs: dict[str, Any]) -> PmlLoss:
    """The loss `pml:ClassName` with its own constructor's arguments as knobs.

    Raises:
        ValueError: The library is missing, has no such loss, or refuses the arguments.
    """
    cls = _class(name)
    sizes = dict.fromkeys(_CLASSES, setup.n_classes) | dict.fromkeys(_DIM, setup.dim)
    own = _arguments(cls)
    # A sampler may give 4.0 for what the library takes as a count.
    knobs = {
        k: int(v) if type(own[k].default) is int and v == int(v) else v for k, v in knobs.items()
    }
    try:
        loss = cls(**{k: sizes[k] for k in _required(cls) if k in sizes}, **knobs)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"{name} refuses {knobs}: {error}") from error
    return PmlLoss(setup, loss)


def pml_knobs(name: str) -> dict[str, KnobInfo]:
    """The plain arguments (numbers, flags, words) of the class's constructor and of its bases'.

    Numbers are typed as floats: a default written `4` says nothing about `4.5`.
    """
    knobs = {}
    cls = _class(name)
    first = inspect.signature(cls.__init__).parameters
    for parameter in _arguments(cls).values():
        default, required = parameter.default, parameter.default is inspect.Parameter.empty
        if parameter.name in (*_CLASSES, *_DIM, *_REGULARIZED):
            continue
        # What only a base requires, the class itself gives it.
        if required and parameter.name not in first:
            continue
        if not (required or isinstance(default, bool | int | float | str)):
            continue
        kind = type(default) if isinstance(default, bool | str) else float
        knobs[parameter.name] = KnobInfo(kind, required, None if required else default)
    return knobs


def has_proxies(name: str) -> bool:
    """Whether a loss has one vector (or more) for each class, which is trained with it."""
    return bool(_required(_class(name)).intersection(_CLASSES))


_REST = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _required(cls: type[nn.Module]) -> set[str]:
    """Arguments a constructor requires."""
    found = _arguments(cls).items()
    return {name for name, parameter in found if parameter.default is inspect.Parameter.empty}


def _arguments(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Arguments a constructor takes, those included that it hands on to its bases."""
    seen: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is nn.Module:
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        for p in parameters:
            if p.kind not in _REST:
                seen.setdefault(p.name, p)
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return seen


def _class(name: str) -> type[nn.Module]:
    known = _losses()
    title = name.removeprefix(PREFIX)
    names = sorted(
        key
        for key, value in vars(known).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and not key.startswith("Base")
    )
    if title not in names:
        close = difflib.get_close_matches(title, names, n=1)
        hint = f"did you mean {PREFIX + close[0]!r}? " if close else ""
        raise ValueError(
            f"pytorch-metric-learning has no loss {title!r}; {hint}known: {', '.join(names)}."
        )
    found: type[nn.Module] = getattr(known, title)
    reason = _UNFIT.get(title)
    if _required(found).intersection(_WRAPPED):
        reason = "it wraps a loss object, which a name cannot give"
    if reason is not None:
        raise ValueError(f"{name} cannot be used here: {reason}.")
    return found


def _losses() -> ModuleType:
    try:
        return importlib.import_module("pytorch_metric_learning.losses")
    except ModuleNotFoundError as error:
        raise ValueError(
            "Losses `pml:...` need pytorch-metric-learning, which is not installed; "
            "install the extra: pip install 'dml-study[pml]'."
        ) from error
