"""How is a frame set as a table on the page?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_GOOD = frozenset({"supported", "better", "safe", "may stay", "holds in all"})
_BAD = frozenset({"contradicted", "worse", "unsafe", "set it", "no common range"})
_OPEN = frozenset({"cannot tell", "undetermined", "no data"})


@dataclass(frozen=True)
class Column:
    """A heading; numbers are set right."""

    name: str
    numeric: bool


@dataclass(frozen=True)
class Cell:
    """Text and its class."""

    text: str
    kind: str


def columns(frame: pd.DataFrame) -> list[Column]:
    """Headings of a frame."""
    return [Column(str(c), _numeric(frame[c])) for c in frame.columns]


def rows(frame: pd.DataFrame) -> list[list[Cell]]:
    """Cells of a frame; the numbers of a column share their decimals."""
    texts = [_texts(frame[c]) for c in frame.columns]
    return [list(row) for row in zip(*texts, strict=True)]


def _numeric(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))


def _texts(column: pd.Series) -> list[Cell]:
    if not _numeric(column):
        return [Cell(text, _kind(text)) for text in map(_plain, column)]
    values = column.to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    integer = pd.api.types.is_integer_dtype(column)
    round_ = bool(len(known) and (known == np.round(known)).all())
    whole = integer or round_
    tiny = bool(((np.abs(known) < 1e-3) & (known != 0)).any())
    top = float(np.abs(known).max()) if len(known) else 0.0
    decimals = 0 if whole or top >= 1000 else 1 if top >= 100 else 2 if top >= 10 else 4

    def text(value: float) -> str:
        if not np.isfinite(value):
            return "–"
        if tiny and not whole and value != 0 and abs(value) < 1e-3:
            return f"{value:.1e}"
        return f"{value:.{decimals}f}"

    return [Cell(text(v), "n") for v in values]


def _plain(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _kind(text: str) -> str:
    for kind, words in (("good", _GOOD), ("bad", _BAD), ("open", _OPEN)):
        if text in words:
            return kind
    return ""
