"""Pictures kept whole: squashed to squares, with crops that lie where the papers' would."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from trainables.backbone import build_backbone
from trainables.data import load_dataset
from trainables.data.augment import Augment, crop_boxes
from trainables.data.pictures import Fit, decode
from trainables.features import compute_features
from trainables.model import pool
from trainables.replica import embed, to_inputs
from trainables.settings import Settings, TrialSpec
from trainables.training import Training, split_tasks
from trainables.vision import import_torchvision
from trainables.workbench import open_bench

AREA, RATIO = (0.16, 1.0), (3 / 4, 4 / 3)
SHAPES = [(512, 384), (384, 512), (512, 128), (256, 256)]


def gradient(width: int, height: int) -> Image.Image:
    """Red tells how far to the right, green how far down; a pixel is at most one level."""
    right, down = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    return Image.fromarray((255 * np.stack([right, down, 0 * down], axis=-1)).astype(np.uint8))


def stored(picture: Image.Image, size: int, fit: Fit) -> tuple[NDArray[np.uint8], float]:
    handle = io.BytesIO()
    picture.save(handle, "PNG")
    pixels, _, aspect = decode(handle, size=size, fit=fit)
    return pixels, aspect


def levels(preset: str, size: int) -> Augment:
    """With outputs in levels of 0..255."""
    return Augment(preset, size=size, mean=(0.0,) * 3, std=(1 / 255,) * 3)


@pytest.mark.parametrize(
    ("orientation", "aspect"), [(1, 1.5), (3, 1.5), (6, 1 / 1.5), (8, 1 / 1.5)]
)
@pytest.mark.parametrize("ending", ["jpg", "tiff"])
def test_the_aspect_is_that_of_the_turned_picture(
    tmp_path: Path, orientation: int, aspect: float, ending: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"p.{ending}"
    gradient(480, 320).save(path, exif=exif)
    pixels, _, found = decode(path, size=32, fit="whole")
    assert found == pytest.approx(aspect)
    assert np.array_equal(pixels, decode(path, size=32, fit="squash")[0])


@settings(max_examples=40, deadline=None)
@given(
    aspect=st.floats(0.1, 10.0), seed=st.integers(0, 999), share=st.sampled_from([0.16, 0.5, 0.9])
)
def test_boxes_are_those_of_the_picture_itself(aspect: float, seed: int, share: float) -> None:
    """The same draws choose the same region, and the same fallback where no draw fits."""
    side = 2**20  # no pixels are needed, and rounding is small
    height, width = round(side / aspect**0.5), round(side * aspect**0.5)
    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    theirs = crop_boxes(64, height, width, (share, 1.0), RATIO, generators[0]).double()
    aspects = torch.full((64,), width / height, dtype=torch.float64)
    ours = crop_boxes(64, side, side, (share, 1.0), RATIO, generators[1], aspects).double()
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    scale = torch.tensor([height, width, height, width]) / side
    apart = (ours * scale - theirs).abs().amax(dim=1) > 2 + 2 * scale.max()
    assert apart.sum() <= 1, "but for a draw that rounding lets in or keeps out"


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_crops_show_what_crops_of_the_picture_show(width: int, height: int) -> None:
    n, side, size = 24, 128, 64
    picture = gradient(width, height)
    pixels, aspect = stored(picture, side, "whole")
    aspects = np.full(n, aspect, dtype=np.float32)
    images = np.repeat(pixels[None], n, axis=0)
    seen = levels("papers", size).train(images, torch.Generator().manual_seed(1), aspects=aspects)
    generator = torch.Generator().manual_seed(1)
    boxes = crop_boxes(n, side, side, AREA, RATIO, generator, torch.from_numpy(aspects).double())
    flips = torch.rand(n, generator=generator) < 0.5
    functional = import_torchvision("torchvision.transforms.v2.functional")
    original = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    for i, (top, left, high, wide) in enumerate(boxes.tolist()):
        x, y = width // side, height // side
        box = (top * y, left * x, high * y, wide * x)
        assert AREA[0] - 0.02 < box[2] * box[3] / (width * height) <= 1
        loose = 1 + 2 / min(high, wide)  # sides are whole pixels
        assert RATIO[0] / loose < box[3] / box[2] < RATIO[1] * loose
        expected = functional.resized_crop(original, *box, [size, size], antialias=True)
        expected = expected.flip(-1) if flips[i] else expected
        assert (seen[i] - expected).abs().max() <= 3


def test_where_no_crop_fits_the_largest_allowed_one_is_taken() -> None:
    wide, tall, square = torch.tensor([[20.0], [1 / 20], [1.0]], dtype=torch.float64)
    aspects = torch.cat([wide, tall])
    boxes = crop_boxes(2, 300, 300, (0.9, 1.0), RATIO, torch.Generator().manual_seed(0), aspects)
    assert boxes.tolist() == [[0, 140, 300, 20], [140, 0, 20, 300]]  # 20 / 300 * 20 = 4 / 3
    thin = crop_boxes(1, 8, 8, (0.9, 1.0), RATIO, torch.Generator(), 1e4 * square)
    assert thin[0, 2:].tolist() == [8, 1]


@pytest.mark.parametrize(("width", "height"), [*SHAPES, (500, 333), (333, 500)])
def test_evaluation_sees_what_it_sees_of_a_cropped_picture(width: int, height: int) -> None:
    seen = []
    for fit in ("whole", "crop", "squash"):
        pixels, aspect = stored(gradient(width, height), 256, fit)
        aspects = np.array([aspect], dtype=np.float32) if fit == "whole" else None
        seen.append(levels("none", 224).evaluate(pixels[None], aspects))
    whole, crop, squash = seen
    assert (whole - crop).abs().max() <= 2
    assert width == height or (squash - crop).abs().max() > 10


@pytest.mark.parametrize("side", [8, 9])
def test_evaluation_of_pictures_thinner_than_a_stored_pixel(side: int) -> None:
    aspects = np.array([1e4, 1e-4], dtype=np.float32)
    images = np.full((2, side, side, 3), 7, dtype=np.uint8)
    assert (levels("none", 16).evaluate(images, aspects) == 7).all()


@pytest.mark.parametrize("preset", ["none", "light"])
def test_without_crops_training_sees_the_evaluation(preset: str) -> None:
    images = np.stack([stored(gradient(*shape), 64, "whole")[0] for shape in SHAPES])
    aspects = np.array([w / h for w, h in SHAPES], dtype=np.float32)
    augment = levels(preset, 64)  # the stored size, at which a square would stay as it is
    seen = augment.train(images, torch.Generator().manual_seed(0), aspects=aspects)
    most = round(augment.preset.shift * 64)
    at = torch.randint(0, 2 * most + 1, (2, 4), generator=torch.Generator().manual_seed(0)) - most
    expected = augment.evaluate(images, aspects)
    for i, (down, right) in enumerate(at.T.tolist()):
        moved = expected[i].roll((-down, -right), (1, 2))
        assert torch.equal(seen[i, :, 8:-8, 8:-8], moved[:, 8:-8, 8:-8])
    assert not torch.equal(expected, augment.evaluate(images))


def pictures(root: Path, width: int = 128, height: int = 96) -> Path:
    """Sixteen classes of three gradients; blue tells which it is, and each its own proportions."""
    for label in range(16):
        for i in range(3):
            pixels = np.array(gradient(width + 3 * label + i, height))
            pixels[..., 2] = 5 * (3 * label + i)
            path = root / f"class{label:02d}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return root


def test_training_reaches_the_edges_of_wide_pictures(tmp_path: Path) -> None:
    root = pictures(tmp_path / "p")
    reached = {}
    for fit in ("crop", "whole"):
        cache = tmp_path / fit
        part = load_dataset("folder", cache_dir=cache, path=str(root), size=64, fit=fit).train
        rows = np.arange(len(part)).repeat(20)
        seen = levels("papers", 32).train(
            part.read(rows), torch.Generator().manual_seed(0), aspects=part.read_aspects(rows)
        )
        reached[fit] = float(seen[:, 0].min()), float(seen[:, 0].max())
        names = {path.name for path in cache.rglob("*.npy")}
        assert names == {"images.npy", "digests.npy"} | (
            {"aspects.npy"} if fit == "whole" else set()
        )
    low, high = reached["crop"]
    assert low > 255 / 8 - 3  # a quarter of a 4:3 picture is beside its centre square
    assert high < 255 * 7 / 8 + 3
    low, high = reached["whole"]
    assert low < 10
    assert high > 245


def test_fingerprints_tell_whole_from_squash(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(pictures(tmp_path / "p"))}
    both = [load_dataset("folder", size=32, fit=fit, **options) for fit in ("squash", "whole")]
    assert np.array_equal(both[0].train.items, both[1].train.items)
    assert both[0].fingerprint != both[1].fingerprint
    assert both[0].train.aspects is None


@pytest.mark.parametrize("query", ["", "asks=1"])
def test_folds_queries_and_galleries_keep_aspects_with_their_items(
    tmp_path: Path, query: str
) -> None:
    files = sorted(pictures(tmp_path / "p").rglob("*.png"))
    blobs = [path.read_bytes() for path in files]
    blobs[4] = b""  # skipped: rows after it move up
    order = np.random.default_rng(0).permutation(len(blobs))  # classes do not lie together
    blobs = [blobs[i] for i in order]
    np.savez(
        tmp_path / "a.npz",
        png=np.frombuffer(b"".join(blobs), np.uint8),
        offsets=np.cumsum([0, *map(len, blobs)]),
        labels=order // 3,
        asks=(order % 3 == 0).astype(int),
    )
    data = load_dataset(
        "arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"), query=query, size=16,
        fit="whole", on_bad_image="skip",
    )  # fmt: skip
    tasks = [task for n in (1, 2, 4) for task in split_tasks(data, "validation", n)]
    parts = [data.train, data.test, *(p for task in tasks for p in (task.train, task.score))]
    for part in parts:
        for rows in (slice(None), np.array([3, 0])):
            which = np.rint(part.read(rows)[:, 8, 8, 2] / 5)
            aspects = part.read_aspects(rows)
            assert aspects is not None
            np.testing.assert_allclose(aspects, (128 + which) / 96, rtol=1e-6)
        assert (part.is_query is None) is (query == "")


def test_features_of_whole_pictures(tmp_path: Path) -> None:
    data = load_dataset(
        "folder", cache_dir=tmp_path, path=str(pictures(tmp_path / "p")), size=32, fit="whole"
    )
    torch.manual_seed(0)
    backbone = build_backbone("conv4", in_channels=3, image_size=28, frozen=True)
    features = compute_features(
        data, backbone, pooling="avg", cache_dir=tmp_path, device=torch.device("cpu"), batch_size=7
    )
    augment = Augment("none", size=28, mean=backbone.mean, std=backbone.std)
    for part, images in ((features.train, data.train), (features.test, data.test)):
        with torch.no_grad():
            direct = pool(backbone(augment.evaluate(images.items, images.aspects)), "avg").numpy()
            squashed = pool(backbone(augment.evaluate(images.items)), "avg").numpy()
        assert np.allclose(part.items, direct, atol=1e-5)
        assert not np.allclose(part.items, squashed, atol=1e-3)
        assert part.aspects is None


def test_a_trial_on_whole_pictures(tmp_path: Path) -> None:
    dataset = {"name": "folder", "path": str(pictures(tmp_path / "p")), "size": 32, "fit": "whole"}
    backbone = {"name": "conv4", "pretrained": False, "frozen": False}
    bench = open_bench(dataset, backbone, cache_dir=tmp_path / "c")
    spec = TrialSpec(
        trial="triplet-0000",
        loss="triplet",
        loss_knobs={"margin": 0.2},
        settings=Settings(epochs=1, batch_size=9, embedding_dim=8, augment="papers"),
        seed=5,
        dataset=dataset,
        backbone=backbone,
        cache_dir="",
        threads=1,
    )
    training = Training(spec, bench)
    (replica,) = training.replicas
    assert replica.augment is not None
    train, score, rows = replica.task.train, replica.task.score, np.arange(9)
    value = replica.gradients(rows, torch.Generator().manual_seed(1))
    labels = torch.from_numpy(train.labels[rows])

    def loss(aspects: NDArray[np.float32] | None) -> float:
        generator = torch.Generator().manual_seed(1)
        inputs = to_inputs(train.read(rows), replica.augment, generator, aspects=aspects)
        with torch.no_grad():
            return float(replica.loss(replica.model(inputs), labels))

    assert value == pytest.approx(loss(train.read_aspects(rows)), rel=1e-5)
    assert value != pytest.approx(loss(None), rel=1e-3)
    everything = slice(None)
    inputs = replica.augment.evaluate(score.read(everything), score.read_aspects(everything))
    vectors = embed(replica.model, score, replica.augment)
    with torch.no_grad():
        assert np.allclose(vectors, replica.model(inputs).numpy(), atol=1e-6)
    assert np.isfinite(training.run_epoch()["score"])
