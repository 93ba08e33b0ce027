"""Loading of local weights files: match by name and shape, and report what was loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHT_SUFFIXES = (".pth", ".pt", ".bin", ".tar", ".safetensors")
WRAPPER_KEYS = ("state_dict", "model_state_dict", "model", "net", "module")
WRAPPER_PREFIXES = ("module.", "model.", "backbone.", "encoder.")
BATCH_COUNTER_SUFFIX = "num_batches_tracked"
WeightAdapter = Callable[[nn.Module, dict[str, Tensor]], dict[str, Tensor]]
"""Converts weights of another shape to the model's shape where that is meaningful."""
CLASSIFIER_PREFIXES = ("fc.", "head.", "classifier.", "last_linear.", "_fc.", "head_drop.")


@dataclass(frozen=True)
class WeightReport:
    """Report on which weights of a file were loaded into a model.

    Args:
        source: Name of the file.
        loaded: Weights of the model that were loaded from the file.
        missing: Weights of the model that are not in the file; they keep their initial values.
        mismatched: Weights with a different shape in the file, with both shapes; not loaded.
        unexpected: Weights of the file that the model does not have, except classifiers.
        ignored: Classifier weights of the file, which an embedding model does not need.
        in_order: Whether the names in the file differ and its weights were matched by position,
            with equal kinds and shapes throughout.
    """

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    in_order: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every weight of the model was loaded from the file."""
        return not self.missing and not self.mismatched

    @property
    def fills_backbone(self) -> bool:
        """Whether every weight that the features depend on was loaded from the file."""
        return all(
            name.startswith(CLASSIFIER_PREFIXES) for name in (*self.missing, *self.mismatched)
        )

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} weights loaded"]
        if self.in_order:
            parts.append("names differ; matched in order, all kinds and shapes agree")
        for category in ("missing", "mismatched", "unexpected"):
            names = getattr(self, category)
            if names:
                more = ", ..." if len(names) > 4 else ""
                parts.append(f"{len(names)} {category} ({', '.join(names[:4])}{more})")
        if self.ignored:
            parts.append(f"classifier ignored ({', '.join(self.ignored)})")
        return "; ".join(parts)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read tensors by name from a .pth or .safetensors file without executing code in it.

    Raises:
        ValueError: If the file does not exist, cannot be read, or holds no tensors.
    """
    if not path.is_file():
        raise ValueError(f"the weights file {path} does not exist")
    if path.suffix not in WEIGHT_SUFFIXES:
        suffixes = ", ".join(WEIGHT_SUFFIXES)
        raise ValueError(f"the weights file must be one of {suffixes}, but got {path.name!r}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each format raises many error types for a broken file
        line = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} cannot be read as weights: {line}") from error
    for key in WRAPPER_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold tensors by name, but got {type(content).__name__}")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ValueError(f"{path} holds no tensors")
    return tensors


def load_weights(model: nn.Module, path: Path, adapt: WeightAdapter | None = None) -> WeightReport:
    """Load weights that match in name and shape, and report the others.

    A prefix that all names of the file share is ignored. If the file has different names, as from
    another library, its weights are matched in order, provided that all kinds and shapes agree.

    Args:
        model: The model to load into.
        path: The weights file.
        adapt: Receives the file's weights under the model's names before shapes are compared.

    Raises:
        ValueError: If the file cannot be read or matches less than half of the model.
    """
    model_state = model.state_dict()
    file_state = _strip_wrapper_prefixes(read_state_dict(path), set(model_state))
    names_match = 2 * len(model_state.keys() & file_state) >= len(model_state)
    renamed = None if names_match else _match_in_order(file_state, model_state)
    file_state = renamed or file_state
    file_state = adapt(model, file_state) if adapt else file_state
    fitting: dict[str, Tensor] = {}
    mismatched = {}
    for name in (n for n in file_state if n in model_state):
        value, target = file_state[name], model_state[name].shape
        if value.shape != target and value.numel() == model_state[name].numel() and value.ndim == 2:
            value = value.reshape(target)  # older public BN-Inception files store (1, C)
        if value.shape == target:
            fitting[name] = value
        else:
            mismatched[name] = f"{name} {tuple(value.shape)} for {tuple(target)}"
    if 2 * len(fitting) < len(model_state):
        file_names, model_names = list(file_state)[:3], list(model_state)[:3]
        raise ValueError(
            f"only {len(fitting)} of the model's {len(model_state)} weights are in {path}; the "
            f"file has {', '.join(file_names)}, ... and the model has {', '.join(model_names)}, ..."
        )
    model.load_state_dict(fitting, strict=False)
    unexpected = [name for name in file_state if name not in model_state]
    return WeightReport(
        source=path.name,
        loaded=tuple(fitting),
        # Batch counters are not weights: older files lack them, and nothing depends on them.
        missing=tuple(
            n
            for n in model_state
            if n not in fitting.keys() | mismatched and BATCH_COUNTER_SUFFIX not in n
        ),
        mismatched=tuple(mismatched.values()),
        unexpected=tuple(n for n in unexpected if not n.startswith(CLASSIFIER_PREFIXES)),
        ignored=tuple(n for n in unexpected if n.startswith(CLASSIFIER_PREFIXES)),
        in_order=renamed is not None,
    )


def _match_in_order(
    file_state: dict[str, Tensor], model_state: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Return the file's weights under the model's names; None unless all pairs agree.

    Equal shapes are not sufficient: weight, bias, mean and variance of a batch norm have the same
    shape, so the kinds must agree too.
    """
    file_weights = {
        n: v
        for n, v in file_state.items()
        if not n.startswith(CLASSIFIER_PREFIXES) and BATCH_COUNTER_SUFFIX not in n
    }
    model_weights = {n: v for n, v in model_state.items() if BATCH_COUNTER_SUFFIX not in n}
    if len(file_weights) != len(model_weights):
        return None
    pairs = list(zip(model_weights, file_weights, strict=True))
    if any(
        model_weights[a].shape != file_weights[b].shape or _weight_kind(a) != _weight_kind(b)
        for a, b in pairs
    ):
        return None
    classifier = {n: v for n, v in file_state.items() if n.startswith(CLASSIFIER_PREFIXES)}
    return {a: file_weights[b] for a, b in pairs} | classifier


def _weight_kind(name: str) -> str:
    """Return the last part of a name: `weight`, `bias`, `running_mean`, ..."""
    return name.rpartition(".")[2]


def _strip_wrapper_prefixes(
    file_state: dict[str, Tensor], model_names: set[str]
) -> dict[str, Tensor]:
    """Remove prefixes of wrappers (DataParallel, training scripts) that most names share."""
    while not model_names & set(file_state):
        majority = len(file_state) / 2
        shared = next(
            (p for p in WRAPPER_PREFIXES if sum(n.startswith(p) for n in file_state) > majority),
            None,
        )
        if shared is None:
            break
        file_state = {n.removeprefix(shared): v for n, v in file_state.items()}
    return file_state
