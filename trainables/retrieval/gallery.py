"""Gallery image: random queries with their nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from trainables.data.dataset import DatasetPart
from trainables.retrieval.metrics import NearestNeighbours, find_neighbours

QUERY_COLOUR, HIT_COLOUR, MISS_COLOUR = "#4d4d4d", "#1b7837", "#c51b1b"
TEXT_COLOUR, BACKGROUND_COLOUR = "#222222", "#ffffff"


def write_gallery(
    path: Path,
    part: DatasetPart,
    embeddings: ArrayLike | torch.Tensor,
    *,
    n_queries: int = 8,
    n_neighbours: int = 8,
    seed: int = 0,
    tile: int = 72,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Draw random queries, each with its nearest neighbours, and return the path.

    A row is a query (grey frame) and its neighbours, nearest first. A neighbour of the same class
    has a green frame; a neighbour of another class has a red frame and a cross in the corner, so
    that colour is not the only sign. Queries are sampled from those that have something to find,
    not selected as best cases.

    Args:
        path: The PNG file to write.
        part: Images, with `is_query` for query/gallery protocols.
        embeddings: (N, D), one for each item of the part.
        n_queries: Number of rows.
        n_neighbours: Number of neighbours per row.
        seed: Seed of the sample.
        tile: Side of an image in pixels.
        class_names: Names of class ids, written below the queries.
        title: Text above the rows.
    """
    if part.kind != "images":
        raise ValueError("a gallery needs images, but this data set holds features")
    vectors = torch.as_tensor(np.asarray(embeddings))
    if len(vectors) != len(part):
        raise ValueError(f"{len(part)} embeddings are needed, got {len(vectors)}")
    queries, nearest, columns = _sample_query_neighbours(
        part, vectors, n_queries, n_neighbours, seed
    )
    canvas = _GalleryCanvas(rows=len(queries), columns=columns, tile=tile, title=title)
    for row, query in enumerate(queries):
        label = part.labels[query]
        name = class_names[label] if class_names is not None else f"class {label}"
        canvas.draw_image(row, 0, part, query, QUERY_COLOUR, cross=False)
        canvas.draw_caption(row, 0, name)
        for column, item in enumerate(nearest.indices[row], start=1):
            hit = part.labels[item] == label
            canvas.draw_image(
                row, column, part, item, HIT_COLOUR if hit else MISS_COLOUR, cross=not hit
            )
            canvas.draw_caption(row, column, f"{nearest.similarities[row, column - 1]:.2f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.image.save(path, format="PNG")
    return path


def _sample_query_neighbours(
    part: DatasetPart, vectors: torch.Tensor, n_queries: int, n_neighbours: int, seed: int
) -> tuple[NDArray[np.int64], NearestNeighbours, int]:
    """Return item indices of the queries, their neighbours, and the number of columns."""
    everything = np.arange(len(part))
    candidates = everything if part.is_query is None else everything[part.is_query]
    gallery = everything if part.is_query is None else everything[~part.is_query]
    classes, counts = np.unique(part.labels[gallery], return_counts=True)
    findable = classes[counts >= (2 if part.is_query is None else 1)]
    candidates = candidates[np.isin(part.labels[candidates], findable)]
    if not len(candidates):
        raise ValueError("no query has another item of its class to find")
    rng = np.random.default_rng(seed)
    queries = np.sort(rng.choice(candidates, size=min(n_queries, len(candidates)), replace=False))
    k = min(n_neighbours, len(gallery) - (part.is_query is None))
    if part.is_query is None:
        return queries, find_neighbours(vectors, k=k, rows=queries), k + 1
    nearest = find_neighbours(vectors[queries], k=k, gallery=vectors[gallery])
    return queries, NearestNeighbours(gallery[nearest.indices], nearest.similarities), k + 1


class _GalleryCanvas:
    """A grid of framed images with captions; the first column is set apart."""

    def __init__(self, *, rows: int, columns: int, tile: int, title: str) -> None:
        self.tile_size, self.frame_width, self.tile_gap = tile, max(3, tile // 20), 6
        self.caption_height = 16
        self.top_margin = 30 if title else 8
        # The fonts of matplotlib contain every script that class names are likely to use.
        face = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
        self.font = ImageFont.truetype(face, 10)
        width = 8 + columns * self._tile_step() + 14 + 8
        height = self.top_margin + rows * (self._tile_step() + self.caption_height) + 8
        self.image = Image.new("RGB", (width, height), BACKGROUND_COLOUR)
        self.draw = ImageDraw.Draw(self.image)
        if title:
            self.draw.text((8, 8), title, fill=TEXT_COLOUR, font=ImageFont.truetype(face, 13))

    def draw_image(
        self, row: int, column: int, part: DatasetPart, item: np.int64, colour: str, *, cross: bool
    ) -> None:
        left, top = self._tile_corner(row, column)
        side = self.tile_size + 2 * self.frame_width
        self.draw.rectangle((left, top, left + side - 1, top + side - 1), fill=colour)
        pixels = part.read_items(int(item))
        # Images that are neither grey nor RGB show their first channels.
        shown = pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]
        image = Image.fromarray(np.ascontiguousarray(shown))
        enlarge = (
            Image.Resampling.NEAREST
            if min(image.size) < self.tile_size
            else Image.Resampling.BICUBIC
        )
        aspects = part.read_aspects(np.array([item]))
        aspect = 1.0 if aspects is None else float(aspects[0])
        width, height = (max(1, round(self.tile_size * min(1, a))) for a in (aspect, 1 / aspect))
        tile = Image.new("RGB", (self.tile_size, self.tile_size), BACKGROUND_COLOUR)
        tile.paste(
            image.convert("RGB").resize((width, height), enlarge),
            ((self.tile_size - width) // 2, (self.tile_size - height) // 2),
        )
        self.image.paste(tile, (left + self.frame_width, top + self.frame_width))
        if cross:
            mark = max(8, self.tile_size // 6)
            right, bottom = left + side - 1, top + side - 1
            self.draw.rectangle((right - mark, bottom - mark, right, bottom), fill=colour)
            for line in (
                (right - mark + 3, bottom - mark + 3, right - 3, bottom - 3),
                (right - mark + 3, bottom - 3, right - 3, bottom - mark + 3),
            ):
                self.draw.line(line, fill="white", width=2)

    def draw_caption(self, row: int, column: int, text: str) -> None:
        left, top = self._tile_corner(row, column)
        width = self.tile_size + 2 * self.frame_width
        while len(text) > 1 and self.draw.textlength(text, font=self.font) > width:
            text = text[:-2] + "…"
        self.draw.text((left, top + width + 1), text, fill=TEXT_COLOUR, font=self.font)

    def _tile_step(self) -> int:
        return self.tile_size + 2 * self.frame_width + self.tile_gap

    def _tile_corner(self, row: int, column: int) -> tuple[int, int]:
        gap = 14 if column else 0
        return 8 + column * self._tile_step() + gap, self.top_margin + row * (
            self._tile_step() + self.caption_height
        )
