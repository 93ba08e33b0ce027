"""Gallery images: hits have green frames, misses red ones with a cross."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from trainables.data.dataset import DatasetPart
from trainables.retrieval.gallery import HIT_COLOUR, MISS_COLOUR, QUERY_COLOUR, write_gallery


def make_part(is_query: bool = False) -> tuple[DatasetPart, np.ndarray]:
    labels = np.repeat(np.arange(4), 3)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (12, 10, 10, 3), dtype=np.uint8)
    embeddings = np.eye(4)[labels] + 0.01 * rng.normal(size=(12, 4))
    queries = np.tile([True, False, False], 4) if is_query else None
    return DatasetPart(images, labels, queries), embeddings


def read_frames(path: Path, n_rows: int, n_columns: int) -> list[list[str]]:
    """Return the meaning of each tile's frame colour, read from the image."""
    colours = {
        ImageColor.getrgb(c): n
        for c, n in ((QUERY_COLOUR, "query"), (HIT_COLOUR, "hit"), (MISS_COLOUR, "miss"))
    }
    pixels = np.asarray(Image.open(path))
    step, line = 72 + 6 + 6, 16
    return [
        [
            colours[tuple(pixels[8 + row * (step + line), 8 + column * step + 14 * (column > 0)])]
            for column in range(n_columns)
        ]
        for row in range(n_rows)
    ]


def test_hits_then_misses(tmp_path: Path) -> None:
    images, embeddings = make_part()
    path = write_gallery(tmp_path / "a" / "g.png", images, embeddings, n_queries=5, n_neighbours=4)
    assert read_frames(path, 5, 5) == [["query", "hit", "hit", "miss", "miss"]] * 5


def test_query_and_gallery(tmp_path: Path) -> None:
    images, embeddings = make_part(is_query=True)
    path = write_gallery(tmp_path / "g.png", images, embeddings, n_queries=9, n_neighbours=99)
    # Four queries, eight gallery items: two hits each, and no other query among the neighbours.
    assert read_frames(path, 4, 9) == [["query", "hit", "hit", *["miss"] * 6]] * 4


def test_same_seed_same_image(tmp_path: Path) -> None:
    images, embeddings = make_part()
    files = [
        write_gallery(tmp_path / f"{i}.png", images, embeddings, n_queries=3, seed=seed)
        for i, seed in enumerate((1, 1, 2))
    ]
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


def test_grey_images_names_and_title(tmp_path: Path) -> None:
    images, embeddings = make_part()
    grey = DatasetPart(images.items[..., :1], images.labels)
    path = write_gallery(
        tmp_path / "g.png", grey, embeddings, class_names=["Ж", "β", "a long name of a class", "d"],
        title="proxy_anchor <b>&</b>",
    )  # fmt: skip
    assert Image.open(path).size[0] > 300


@pytest.mark.parametrize("channels", [2, 4, 5, 6])
def test_other_numbers_of_channels_show_the_first_ones(tmp_path: Path, channels: int) -> None:
    images, embeddings = make_part()
    rest = np.zeros((*images.items.shape[:3], 6), dtype=np.uint8)
    more = np.concatenate([images.items, rest], axis=-1)[..., :channels]
    shown = images.items if channels > 3 else images.items[..., :1]
    paths = [
        write_gallery(tmp_path / f"{i}.png", DatasetPart(items, images.labels), embeddings)
        for i, items in enumerate((more, shown))
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(("aspect", "width", "height"), [(2.0, 72, 36), (0.25, 18, 72)])
def test_squashed_images_have_their_proportions(
    tmp_path: Path, aspect: float, width: int, height: int
) -> None:
    images, embeddings = make_part()
    black = DatasetPart(0 * images.items, images.labels, aspects=np.full(12, aspect, np.float32))
    pixels = np.asarray(Image.open(write_gallery(tmp_path / "g.png", black, embeddings)))
    tile = pixels[11:83, 11:83]  # the first query's, without its frame
    down, right = np.nonzero((tile == 0).all(axis=-1))
    assert (len(set(right)), len(set(down))) == (width, height)
    assert (right.min(), down.min()) == ((72 - width) // 2, (72 - height) // 2)
    assert ((tile == 0) | (tile == 255)).all(), "white beside it"


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    images, embeddings = make_part()
    features = DatasetPart(embeddings.astype(np.float32), images.labels)
    with pytest.raises(ValueError, match="needs images"):
        write_gallery(tmp_path / "g.png", features, embeddings)
    with pytest.raises(ValueError, match="12 embeddings are needed, got 3"):
        write_gallery(tmp_path / "g.png", images, embeddings[:3])
    with pytest.raises(ValueError, match="no query has another item"):
        write_gallery(tmp_path / "g.png", DatasetPart(images.items, np.arange(12)), embeddings)
