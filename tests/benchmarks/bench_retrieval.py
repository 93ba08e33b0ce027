"""Benchmark of exact retrieval metrics against their matrix products and the library.

    python tests/benchmarks/bench_retrieval.py [--quick] [--rounds N] [--out FILE]

The data is 60,502 embeddings of 512 dimensions in 11,316 classes, the size of Stanford Online
Products' test half. The methods take turns in the same run: the matrix products X X^T in blocks,
ours (R-precision, MAP@R and R@1, 2, 4, 8, then R@1, 10, 100, 1000) and the AccuracyCalculator of
pytorch-metric-learning (P@1, R-precision, MAP@R). Ratios are medians over rounds; ratios of
processor times are also valid on a busy machine. Peak memory beyond the embeddings is measured in a
new process. A quick run writes no result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from trainables.retrieval.block_sizes import BLOCK_BYTES  # noqa: E402
from trainables.retrieval.metrics import evaluate  # noqa: E402

RESULTS = Path(__file__).parent / "results"
N_ITEMS, N_CLASSES, DIM = 60_502, 11_316, 512
QUICK_N_ITEMS, QUICK_N_CLASSES = 6_000, 1_100
KS = {"ours": (1, 2, 4, 8), "ours, K to 1000": (1, 10, 100, 1000)}


def make_embeddings(n: int, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return clustered unit vectors with R@1 of about a third, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % n_classes
    centres = torch.randn(n_classes, DIM, generator=generator)
    noise = torch.randn(n, DIM, generator=generator)
    return torch.nn.functional.normalize(centres[labels] + 2.6 * noise), labels


def compute_products(x: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute only the matrix products, in the same blocks."""
    block = max(1, BLOCK_BYTES // (4 * len(x)))
    out = torch.empty(block, len(x))
    for start in range(0, len(x), block):
        rows = x[start : start + block]
        torch.mm(rows, x.T, out=out[: len(rows)])
    return {}


def evaluate_with_library(x: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics of pytorch-metric-learning with its faster value of `k`."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
    )
    scores: dict[str, float] = calculator.get_accuracy(x, labels)
    return {
        "recall_at_1": scores["precision_at_1"],
        "r_precision": scores["r_precision"],
        "map_at_r": scores["mean_average_precision_at_r"],
    }


METHODS: dict[str, Callable[[Tensor, Tensor], dict[str, float]]] = {
    "products": compute_products,
    "ours": lambda x, labels: evaluate(x, labels, ks=KS["ours"]),
    "ours, K to 1000": lambda x, labels: evaluate(x, labels, ks=KS["ours, K to 1000"]),
    "library": evaluate_with_library,
}


def measure_memory_in_process(method: str, n: int, n_classes: int) -> int:
    """Return the additional bytes of a call at its peak, measured in a new process."""
    command = [sys.executable, __file__, "--memory-of", method, "--size", str(n), str(n_classes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def measure_memory(method: str, n: int, n_classes: int) -> int:
    x, labels = make_embeddings(n, n_classes)
    METHODS[method](*make_embeddings(300, 50))  # exclude imports and thread pools
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (Linux)
    before = _read_status_bytes("VmRSS")
    METHODS[method](x, labels)
    return _read_status_bytes("VmHWM") - before


def _read_status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def run_benchmark(n: int, n_classes: int, rounds: int) -> dict[str, Any]:
    x, labels = make_embeddings(n, n_classes)
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    cpu: dict[str, list[float]] = {name: [] for name in METHODS}
    scores: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, method in METHODS.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            scores[name] = method(x, labels)
            seconds[name].append(time.perf_counter() - started)
            cpu[name].append(time.process_time() - cpu_started)
            text = f"{seconds[name][-1]:8.2f} s, {cpu[name][-1]:8.2f} s of processor time"
            print(f"{name:>16}: {text}", flush=True)

    def ratio(times: dict[str, list[float]], name: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times[to], strict=True))

    for name in ("recall_at_1", "r_precision", "map_at_r"):
        # The library's float32 distances may swap near-ties; a larger difference is an error.
        assert abs(scores["ours"][name] - scores["library"][name]) < 1e-4, name
    return {
        "size": [n, DIM],
        "classes": n_classes,
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ours_to_products": ratio(seconds, "ours", "products"),
        "ours_k1000_to_products": ratio(seconds, "ours, K to 1000", "products"),
        "library_to_ours": ratio(seconds, "library", "ours"),
        "processor_time": {
            "ours_to_products": ratio(cpu, "ours", "products"),
            "ours_k1000_to_products": ratio(cpu, "ours, K to 1000", "products"),
            "library_to_ours": ratio(cpu, "library", "ours"),
        },
        "extra_memory_mib": {
            name: round(measure_memory_in_process(name, n, n_classes) / 2**20)
            for name in ("ours", "library")
        },
        "scores": scores["ours"],
        "largest_difference_to_library": max(
            abs(scores["ours"][k] - scores["library"][k]) for k in scores["library"]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, two rounds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--threads", type=int, default=0, help="torch threads; 0 is the default of torch"
    )
    parser.add_argument("--out", type=Path, help="default: results/, no file for a quick run")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--size", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(measure_memory(options.memory_of, *options.size))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    n, n_classes = (QUICK_N_ITEMS, QUICK_N_CLASSES) if options.quick else (N_ITEMS, N_CLASSES)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "load_average_at_start": os.getloadavg()[0],
        **run_benchmark(n, n_classes, 2 if options.quick else options.rounds),
    }
    out = options.out or (None if options.quick else RESULTS / "retrieval.json")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
