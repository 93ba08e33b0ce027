"""How long is an epoch's data work from the cache, beside decoding every picture each time?

    python tests/benchmarks/bench_data.py [--quick] [--out FILE]

JPEG files of 500 x 375 pixels (about the size of CUB's and Cars') are made from real photos where
they are at hand (DML_STUDY_DATA), else from drawn textures. An epoch gives every picture once as a
normalised 224 px tensor after the papers' random resized crop and flip: from the memory-mapped
cache, and with PIL and torchvision from the files, as a data loader worker does. Also: building the
cache, opening it, and the same epoch for the embedded glyphs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import PIL  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from trainables.data import Dataset, load_dataset  # noqa: E402
from trainables.data.augment import Augment  # noqa: E402
from trainables.data.sampler import epoch_batches  # noqa: E402
from trainables.vision import import_torchvision  # noqa: E402

RESULTS = Path(__file__).parent / "results"
BATCH, SIZE = 64, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_pictures(folder: Path, n: int) -> str:
    """Write n JPEG files in 40 class folders; says what they show."""
    photos = _photos(n)
    rng = np.random.default_rng(0)
    for i in range(n):
        small = (
            photos[i]
            if photos
            else Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        )
        path = folder / f"class{i % 40:02d}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=92)
    return "real photos" if photos else "drawn textures"


def _photos(n: int) -> list[Image.Image]:
    named = os.environ.get("DML_STUDY_DATA")
    folders = [Path(named)] if named else [
        ROOT.parent / "shared" / "data", ROOT.parent.parent / "shared" / "data"
    ]  # fmt: skip
    for file in (folder / "grocery81_96px.npz" for folder in folders):
        if file.is_file():
            content = np.load(file, allow_pickle=False)
            offsets, data = content["offsets"], content["webp"]
            return [
                Image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes())).convert("RGB")
                for i in np.arange(n) * 7 % (len(offsets) - 1)
            ]
    return []


def from_cache(dataset: Dataset, augment: Augment, epoch: int) -> int:
    """One epoch over the training half."""
    generator = torch.Generator().manual_seed(epoch)
    seen = 0
    for batch in epoch_batches(
        dataset.train.labels, batch_size=BATCH, images_per_class=4, seed=(0, epoch)
    ):
        seen += len(augment.train(dataset.train.items[batch], generator))
    return seen


def from_files(files: list[Path], count: int) -> int:
    """As many pictures, each read, decoded and changed by torchvision."""
    v2 = import_torchvision("torchvision.transforms.v2")
    change = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, scale=(0.16, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    for start in range(0, count, BATCH):
        batch = files[start : min(start + BATCH, count)]
        torch.stack([change(Image.open(f).convert("RGB")) for f in batch])
    return count


def run(n: int, rounds: int, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shown = make_pictures(folder / "pictures", n)
        files = sorted((folder / "pictures").rglob("*.jpg"))
        options: dict[str, Any] = {"cache_dir": folder / "cache", "path": str(folder / "pictures")}
        started = time.perf_counter()
        load_dataset("folder", **options)
        built = time.perf_counter() - started
        started = time.perf_counter()
        dataset = load_dataset("folder", **options)
        opened = time.perf_counter() - started
        augment = Augment("papers", size=SIZE, mean=MEAN, std=STD)
        cached, decoded = [], []
        augment.train(dataset.train.items[:2], torch.Generator())  # imports are not the epoch's
        from_files(files, 2)
        for epoch in range(rounds):
            started = time.perf_counter()
            seen = from_cache(dataset, augment, epoch)
            cached.append((time.perf_counter() - started) / seen)
            started = time.perf_counter()
            from_files(files, seen)
            decoded.append((time.perf_counter() - started) / seen)
        glyphs = load_dataset("glyphs", cache_dir=folder / "cache")
        light = Augment("light", size=28, mean=(0.5,), std=(0.5,))
        started = time.perf_counter()
        seen = from_cache(glyphs, light, 0)
        return {
            "pictures": f"{n} JPEG, 500 x 375, {shown}",
            "threads": threads,
            "build_ms_per_image": 1e3 * built / n,
            "open_seconds": opened,
            "epoch_from_cache_ms_per_image": 1e3 * statistics.median(cached),
            "epoch_from_files_ms_per_image": 1e3 * statistics.median(decoded),
            "files_to_cache": statistics.median(
                d / c for d, c in zip(decoded, cached, strict=True)
            ),
            "glyphs_epoch_ms_per_image": 1e3 * (time.perf_counter() - started) / seen,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer pictures, one round")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of both sides")
    parser.add_argument("--out", type=Path, help="default: results/, and nowhere for a quick run")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    n, rounds = (320, 2) if options.quick else (1200, 3)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        **run(n, rounds, options.threads),
    }
    out = options.out or (None if options.quick else RESULTS / "data.json")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
