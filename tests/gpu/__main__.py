"""Program of `make gpu`: throughput and memory on the GPUs of this machine, written to a result.

python -m tests.gpu [--quick]
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

import torch

from tests.benchmarks.recording import write_result
from tests.gpu.comparison import BACKBONES, BATCH_SIZE, make_result_name, run_comparison
from trainables.device_checks.device_info import collect_gpu_versions, explain_missing_cuda
from trainables.device_checks.training_speed import SpeedCase


def main() -> None:
    """Measure, print the table and write the result; without a GPU say why not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one backbone; writes no file")
    quick = parser.parse_args().quick
    if reason := explain_missing_cuda():
        print(f"skipped: {reason}")
        return
    n_devices, rows = torch.cuda.device_count(), []
    for backbone in BACKBONES[:1] if quick else BACKBONES:
        repeats = 2 if quick else 8
        case = SpeedCase(backbone=backbone, batch_size=BATCH_SIZE, steps=5, repeats=repeats)
        rows += run_comparison(case, torch.device("cuda", 0), n_devices=n_devices)
    content = {
        "kind": "measured",
        "gpu": collect_gpu_versions(),
        "libraries": {name: version(name) for name in ("timm", "torchvision")},
        "rows": rows,
    }
    path = write_result(make_result_name(torch.cuda.get_device_name(0)), content, quick=quick)
    print(f"written to {path}" if path else "a quick run writes no result")


if __name__ == "__main__":
    main()
