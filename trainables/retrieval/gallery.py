"""What does the model find? Queries with their nearest neighbours, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from trainables.data.dataset import Part
from trainables.retrieval import Neighbours, nearest

QUERY, HIT, MISS = "#4d4d4d", "#1b7837", "#c51b1b"
TEXT, BACKGROUND = "#222222", "#ffffff"


def write_gallery(
    path: Path,
    part: Part,
    embeddings: ArrayLike | torch.Tensor,
    *,
    n_queries: int = 8,
    n_neighbours: int = 8,
    seed: int = 0,
    tile: int = 72,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Draw random queries, each with its nearest neighbours, hits and misses framed.

    A row is a query (grey frame) and its neighbours, nearest first: green frame for the same class,
    red frame with a cross in the corner for another one, so colour is not the only sign. Queries
    are drawn at random from those that have something to find: no best cases are picked.

    Args:
        path: The PNG to write.
        part: Images, with `is_query` for query/gallery protocols.
        embeddings: (N, D), one for each item of the part.
        tile: Side of a picture in pixels.
        class_names: Names of class ids, written below the queries.
    """
    if part.kind != "images":
        raise ValueError("a gallery needs images, but this data set holds features.")
    vectors = torch.as_tensor(np.asarray(embeddings))
    if len(vectors) != len(part):
        raise ValueError(f"{len(part)} embeddings are needed, got {len(vectors)}.")
    queries, found, columns = _neighbours(part, vectors, n_queries, n_neighbours, seed)
    canvas = _Canvas(rows=len(queries), columns=columns, tile=tile, title=title)
    for row, query in enumerate(queries):
        label = part.labels[query]
        name = class_names[label] if class_names is not None else f"class {label}"
        canvas.picture(row, 0, part, query, QUERY, cross=False)
        canvas.caption(row, 0, name)
        for column, item in enumerate(found.indices[row], start=1):
            hit = part.labels[item] == label
            canvas.picture(row, column, part, item, HIT if hit else MISS, cross=not hit)
            canvas.caption(row, column, f"{found.similarities[row, column - 1]:.2f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.image.save(path, format="PNG")
    return path


def _neighbours(
    part: Part, vectors: torch.Tensor, n_queries: int, n_neighbours: int, seed: int
) -> tuple[NDArray[np.int64], Neighbours, int]:
    """Item indices of the queries and of what each finds, and the number of columns."""
    everything = np.arange(len(part))
    asks = everything if part.is_query is None else everything[part.is_query]
    shown = everything if part.is_query is None else everything[~part.is_query]
    classes, counts = np.unique(part.labels[shown], return_counts=True)
    findable = classes[counts >= (2 if part.is_query is None else 1)]
    asks = asks[np.isin(part.labels[asks], findable)]
    if not len(asks):
        raise ValueError("no query has another item of its class to find.")
    rng = np.random.default_rng(seed)
    queries = np.sort(rng.choice(asks, size=min(n_queries, len(asks)), replace=False))
    k = min(n_neighbours, len(shown) - (part.is_query is None))
    if part.is_query is None:
        return queries, nearest(vectors, k=k, rows=queries), k + 1
    found = nearest(vectors[queries], k=k, gallery=vectors[shown])
    return queries, Neighbours(shown[found.indices], found.similarities), k + 1


class _Canvas:
    """A grid of framed pictures with captions, the first column set apart."""

    def __init__(self, *, rows: int, columns: int, tile: int, title: str) -> None:
        self.tile, self.frame, self.gap = tile, max(3, tile // 20), 6
        self.line = 16
        self.top = 30 if title else 8
        # The faces matplotlib ships draw every script that class names may be in.
        face = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
        self.font = ImageFont.truetype(face, 10)
        width = 8 + columns * self._step() + 14 + 8
        height = self.top + rows * (self._step() + self.line) + 8
        self.image = Image.new("RGB", (width, height), BACKGROUND)
        self.draw = ImageDraw.Draw(self.image)
        if title:
            self.draw.text((8, 8), title, fill=TEXT, font=ImageFont.truetype(face, 13))

    def picture(
        self, row: int, column: int, part: Part, item: np.int64, colour: str, *, cross: bool
    ) -> None:
        left, top = self._corner(row, column)
        side = self.tile + 2 * self.frame
        self.draw.rectangle((left, top, left + side - 1, top + side - 1), fill=colour)
        pixels = part.read(int(item))
        # Of other channels than grey or colours, the first are shown as such.
        seen = pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]
        picture = Image.fromarray(np.ascontiguousarray(seen))
        enlarge = (
            Image.Resampling.NEAREST if min(picture.size) < self.tile else Image.Resampling.BICUBIC
        )
        aspects = part.read_aspects(np.array([item]))
        aspect = 1.0 if aspects is None else float(aspects[0])
        width, height = (max(1, round(self.tile * min(1, a))) for a in (aspect, 1 / aspect))
        tile = Image.new("RGB", (self.tile, self.tile), BACKGROUND)
        tile.paste(
            picture.convert("RGB").resize((width, height), enlarge),
            ((self.tile - width) // 2, (self.tile - height) // 2),
        )
        self.image.paste(tile, (left + self.frame, top + self.frame))
        if cross:
            mark = max(8, self.tile // 6)
            right, bottom = left + side - 1, top + side - 1
            self.draw.rectangle((right - mark, bottom - mark, right, bottom), fill=colour)
            for line in (
                (right - mark + 3, bottom - mark + 3, right - 3, bottom - 3),
                (right - mark + 3, bottom - 3, right - 3, bottom - mark + 3),
            ):
                self.draw.line(line, fill="white", width=2)

    def caption(self, row: int, column: int, text: str) -> None:
        left, top = self._corner(row, column)
        room = self.tile + 2 * self.frame
        while len(text) > 1 and self.draw.textlength(text, font=self.font) > room:
            text = text[:-2] + "…"
        self.draw.text((left, top + room + 1), text, fill=TEXT, font=self.font)

    def _step(self) -> int:
        return self.tile + 2 * self.frame + self.gap

    def _corner(self, row: int, column: int) -> tuple[int, int]:
        apart = 14 if column else 0
        return 8 + column * self._step() + apart, self.top + row * (self._step() + self.line)
