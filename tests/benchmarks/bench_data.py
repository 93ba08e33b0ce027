"""Benchmark of an epoch's data loading: memory-mapped cache against decoding every image.

    python tests/benchmarks/bench_data.py [--quick] [--out FILE]

The images are JPEG files of 500 x 375 pixels, about the size of CUB's and Cars', made from the real
photos in DML_STUDY_DATA or, without them, from random textures. An epoch returns every image once
as a normalised 224 px tensor after the papers' random resized crop and flip: from the cache, and
with PIL and torchvision from the files, as in a data loader worker. The benchmark also times
building and opening the cache, and an epoch of the built-in glyphs.
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

from trainables.data import Dataset  # noqa: E402
from trainables.data.augment import ImageTransform  # noqa: E402
from trainables.data.batch_sampler import sample_epoch_batches  # noqa: E402
from trainables.data.registry import load_dataset  # noqa: E402
from trainables.utils.torchvision_import import import_torchvision  # noqa: E402

RESULTS = Path(__file__).parent / "results"
BATCH_SIZE, IMAGE_SIZE = 64, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write_images(folder: Path, n: int) -> str:
    """Write n JPEG files in 40 class folders and return a description of their content."""
    photos = _load_photos(n)
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


def _load_photos(n: int) -> list[Image.Image]:
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


def run_epoch_from_cache(dataset: Dataset, augment: ImageTransform, epoch: int) -> int:
    """Load one epoch of the training half and return the number of images."""
    generator = torch.Generator().manual_seed(epoch)
    n_images = 0
    for batch in sample_epoch_batches(
        dataset.train.labels, batch_size=BATCH_SIZE, images_per_class=4, seed=(0, epoch)
    ):
        n_images += len(augment.augment_images(dataset.train.items[batch], generator))
    return n_images


def run_epoch_from_files(files: list[Path], count: int) -> int:
    """Load `count` images from files, decoded and transformed by torchvision."""
    v2 = import_torchvision("torchvision.transforms.v2")
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(IMAGE_SIZE, scale=(0.16, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    for start in range(0, count, BATCH_SIZE):
        batch = files[start : min(start + BATCH_SIZE, count)]
        torch.stack([transform(Image.open(f).convert("RGB")) for f in batch])
    return count


def run_benchmark(n: int, rounds: int, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        description = write_images(folder / "images", n)
        files = sorted((folder / "images").rglob("*.jpg"))
        options: dict[str, Any] = {"cache_dir": folder / "cache", "path": str(folder / "images")}
        started = time.perf_counter()
        load_dataset("folder", **options)
        built = time.perf_counter() - started
        started = time.perf_counter()
        dataset = load_dataset("folder", **options)
        opened = time.perf_counter() - started
        augment = ImageTransform("papers", size=IMAGE_SIZE, mean=MEAN, std=STD)
        cached, decoded = [], []
        # Exclude imports from the times.
        augment.augment_images(dataset.train.items[:2], torch.Generator())
        run_epoch_from_files(files, 2)
        for epoch in range(rounds):
            started = time.perf_counter()
            n_images = run_epoch_from_cache(dataset, augment, epoch)
            cached.append((time.perf_counter() - started) / n_images)
            started = time.perf_counter()
            run_epoch_from_files(files, n_images)
            decoded.append((time.perf_counter() - started) / n_images)
        glyphs = load_dataset("glyphs", cache_dir=folder / "cache")
        light = ImageTransform("light", size=28, mean=(0.5,), std=(0.5,))
        started = time.perf_counter()
        n_images = run_epoch_from_cache(glyphs, light, 0)
        return {
            "pictures": f"{n} JPEG, 500 x 375, {description}",
            "threads": threads,
            "build_ms_per_image": 1e3 * built / n,
            "open_seconds": opened,
            "epoch_from_cache_ms_per_image": 1e3 * statistics.median(cached),
            "epoch_from_files_ms_per_image": 1e3 * statistics.median(decoded),
            "files_to_cache": statistics.median(
                d / c for d, c in zip(decoded, cached, strict=True)
            ),
            "glyphs_epoch_ms_per_image": 1e3 * (time.perf_counter() - started) / n_images,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer images, two rounds")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of both methods")
    parser.add_argument("--out", type=Path, help="default: results/, no file for a quick run")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    n, rounds = (320, 2) if options.quick else (1200, 3)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        **run_benchmark(n, rounds, options.threads),
    }
    out = options.out or (None if options.quick else RESULTS / "data.json")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
