"""Import of torchvision if its compiled operators do not match the installed torch."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

# Kept alive for the lifetime of the process: torch drops the schemas with the library object.
_DECLARED_LIBRARIES: list[torch.library.Library] = []


def import_torchvision(name: str = "torchvision") -> ModuleType:
    """Import torchvision, or one of its modules, even with a CPU-only torch.

    The torchvision wheel on PyPI is built for torch with CUDA. With a CPU-only torch its operators
    do not load and the import fails because of a missing schema. Image transforms and timm do not
    need these operators, so the two missing schemas are declared and the import is repeated. If
    torchvision imports without an error, nothing is changed.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _DECLARED_LIBRARIES:
            raise
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[loaded]  # partially initialised by the failed import
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    _DECLARED_LIBRARIES.append(library)
    return importlib.import_module(name)
