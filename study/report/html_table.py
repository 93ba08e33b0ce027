"""HTML tables: headings, cell texts and CSS classes of a data frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_GOOD_VERDICTS = frozenset({"supported", "better", "safe", "may stay", "holds in all"})
_BAD_VERDICTS = frozenset({"contradicted", "worse", "unsafe", "set it", "no common range"})
_OPEN_VERDICTS = frozenset({"cannot tell", "undetermined", "no data"})


@dataclass(frozen=True)
class TableColumn:
    """Heading of a column; numeric columns are aligned right."""

    name: str
    numeric: bool


@dataclass(frozen=True)
class TableCell:
    """Text of a cell and its CSS class."""

    text: str
    kind: str


def table_columns(frame: pd.DataFrame) -> list[TableColumn]:
    """Return the headings of a frame."""
    return [TableColumn(str(c), _is_numeric_column(frame[c])) for c in frame.columns]


def table_rows(frame: pd.DataFrame) -> list[list[TableCell]]:
    """Return the cells row by row; all numbers of a column have the same decimals."""
    cells = [_column_cells(frame[c]) for c in frame.columns]
    return [list(row) for row in zip(*cells, strict=True)]


def _is_numeric_column(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))


def _column_cells(column: pd.Series) -> list[TableCell]:
    if not _is_numeric_column(column):
        return [
            TableCell(text, _verdict_css_class(text)) for text in map(_format_table_value, column)
        ]
    values = column.to_numpy(dtype=float)
    finite = values[np.isfinite(values)]
    all_integers = pd.api.types.is_integer_dtype(column) or bool(
        len(finite) and (finite == np.round(finite)).all()
    )
    top = float(np.abs(finite).max()) if len(finite) else 0.0
    decimals = 0 if all_integers or top >= 1000 else 1 if top >= 100 else 2 if top >= 10 else 4

    def format_number(value: float) -> str:
        if not np.isfinite(value):
            return "–"
        if not all_integers and 0 < abs(value) < 1e-3:
            return f"{value:.1e}"
        return f"{value:.{decimals}f}"

    return [TableCell(format_number(v), "n") for v in values]


def _format_table_value(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _verdict_css_class(text: str) -> str:
    for kind, words in (("good", _GOOD_VERDICTS), ("bad", _BAD_VERDICTS), ("open", _OPEN_VERDICTS)):
        if text in words:
            return kind
    return ""
