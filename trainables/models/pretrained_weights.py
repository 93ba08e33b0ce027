"""Which of a file's weights fit this model?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

SUFFIXES = (".pth", ".pt", ".bin", ".tar", ".safetensors")
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "module")
PREFIXES = ("module.", "model.", "backbone.", "encoder.")
COUNTER = "num_batches_tracked"
Adapt = Callable[[nn.Module, dict[str, Tensor]], dict[str, Tensor]]
"""Gives weights of another shape the shape that the model has, where that makes sense."""
HEADS = ("fc.", "head.", "classifier.", "last_linear.", "_fc.", "head_drop.")


@dataclass(frozen=True)
class WeightReport:
    """What was loaded and what was not.

    Args:
        loaded: Names of the model that got a value.
        missing: Names of the model without a value in the file; they keep their initial values.
        mismatched: Names found with another shape, with both shapes; not loaded.
        unexpected: Names of the file that the model does not have, classifiers left out.
        ignored: Classifier weights of the file, which an embedding model does not need.
        in_order: The file has other names; its weights were taken in order, kinds and shapes
            agreeing one by one.
    """

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    in_order: bool = False

    @property
    def complete(self) -> bool:
        """Whether every weight of the model came from the file."""
        return not self.missing and not self.mismatched

    @property
    def fills_backbone(self) -> bool:
        """Whether every weight that features depend on came from the file."""
        return all(name.startswith(HEADS) for name in (*self.missing, *self.mismatched))

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} weights loaded"]
        if self.in_order:
            parts.append("its names are others: taken in order, all kinds and shapes agree")
        for what in ("missing", "mismatched", "unexpected"):
            names = getattr(self, what)
            if names:
                more = ", ..." if len(names) > 4 else ""
                parts.append(f"{len(names)} {what} ({', '.join(names[:4])}{more})")
        if self.ignored:
            parts.append(f"classifier ignored ({', '.join(self.ignored)})")
        return "; ".join(parts)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .pth or .safetensors file; nothing in it is executed."""
    if not path.is_file():
        raise ValueError(f"the weights file {path} does not exist.")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"weights must be one of {', '.join(SUFFIXES)}, got {path.name!r}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each format has its own zoo of errors for a broken file
        line = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} cannot be read as weights: {line}") from error
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold tensors by name, got {type(content).__name__}.")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ValueError(f"{path} holds no tensors.")
    return tensors


def load_weights(model: nn.Module, path: Path, adapt: Adapt | None = None) -> WeightReport:
    """Load what fits by name and shape, also below a common prefix, and say what did not.

    A file of the same model under other names (another library's) is taken in order when every
    weight agrees in kind and shape.

    Args:
        adapt: Is given the file's weights under the model's names before shapes are compared.

    Raises:
        ValueError: When the file cannot be read or fits less than half of the model.
    """
    own = model.state_dict()
    given = _without_prefix(read_state_dict(path), set(own))
    known = 2 * len(own.keys() & given) >= len(own)
    renamed = None if known else _in_order(given, own)
    given = renamed or given
    given = adapt(model, given) if adapt else given
    fitting: dict[str, Tensor] = {}
    mismatched = {}
    for name in (n for n in given if n in own):
        value, target = given[name], own[name].shape
        if value.shape != target and value.numel() == own[name].numel() and value.ndim == 2:
            value = value.reshape(target)  # old public BN-Inception files keep (1, C) batch norms
        if value.shape == target:
            fitting[name] = value
        else:
            mismatched[name] = f"{name} {tuple(value.shape)} for {tuple(target)}"
    if 2 * len(fitting) < len(own):
        raise ValueError(
            f"only {len(fitting)} of the model's {len(own)} weights are in {path}: the file has "
            f"{', '.join(list(given)[:3])}, ... and the model {', '.join(list(own)[:3])}, ..."
        )
    model.load_state_dict(fitting, strict=False)
    unexpected = [name for name in given if name not in own]
    return WeightReport(
        source=path.name,
        loaded=tuple(fitting),
        # Batch counters are no weights: older files lack them and nothing depends on them.
        missing=tuple(n for n in own if n not in fitting.keys() | mismatched and COUNTER not in n),
        mismatched=tuple(mismatched.values()),
        unexpected=tuple(n for n in unexpected if not n.startswith(HEADS)),
        ignored=tuple(n for n in unexpected if n.startswith(HEADS)),
        in_order=renamed is not None,
    )


def _in_order(given: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The file's weights under the model's names; None unless they pair up without exception.

    Shapes alone would not do: a batch norm's weight, bias, mean and variance have the same.
    """
    theirs = {n: v for n, v in given.items() if not n.startswith(HEADS) and COUNTER not in n}
    ours = {n: v for n, v in own.items() if COUNTER not in n}
    if len(theirs) != len(ours):
        return None
    pairs = list(zip(ours, theirs, strict=True))
    if any(ours[a].shape != theirs[b].shape or _kind(a) != _kind(b) for a, b in pairs):
        return None
    heads = {n: v for n, v in given.items() if n.startswith(HEADS)}
    return {a: theirs[b] for a, b in pairs} | heads


def _kind(name: str) -> str:
    """`weight`, `bias`, `running_mean`, ...: what a weight is, whatever its layer is called."""
    return name.rpartition(".")[2]


def _without_prefix(given: dict[str, Tensor], own: set[str]) -> dict[str, Tensor]:
    """Drop the prefixes of wrappers (DataParallel, training scripts) that most names share."""
    while not own & set(given):
        shared = next(
            (p for p in PREFIXES if 2 * sum(n.startswith(p) for n in given) > len(given)), None
        )
        if shared is None:
            break
        given = {n.removeprefix(shared): v for n, v in given.items()}
    return given
