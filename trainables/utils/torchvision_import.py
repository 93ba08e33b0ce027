"""How is torchvision imported when its compiled operators do not fit the installed torch?"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

# Kept alive for the life of the process: torch drops the schemas with the library object.
_LIBRARY: list[torch.library.Library] = []


def import_torchvision(name: str = "torchvision") -> ModuleType:
    """Import torchvision, or a module below it, also beside a CPU-only torch.

    The registry's torchvision wheel is built for CUDA torch; beside a CPU-only torch its operators
    do not load and the import fails on a missing schema. Image transforms and timm need none of
    these operators, so the two missing schemas are declared and the import is tried again. Where
    torchvision imports by itself nothing is touched.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _LIBRARY:
            raise
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[loaded]  # half-initialised by the failed import
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.append(library)
    return importlib.import_module(name)
