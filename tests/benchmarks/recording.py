"""Result files of the benchmarks, with versions and date."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "ray", "optuna", "mlflow", "pytorch-metric-learning", "faiss-cpu", "numpy")


def write_result(name: str, content: dict[str, Any], *, quick: bool = False) -> Path | None:
    """Write the result of a full run to results/ and return its path; skip quick runs."""
    if quick:
        return None
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "versions": {package: version(package) for package in PACKAGES},
        **content,
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path
