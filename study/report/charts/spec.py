"""Chart specification: panels, axes and marks, independent of the renderer.

One specification serves the interactive page (`plotly_renderer`) and the figure files
(`matplotlib_renderer`). It has no pixels and no colours of a theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PALETTE = (
    "#4269d0",
    "#e08f00",
    "#d9483b",
    "#2a9d8f",
    "#3c9a47",
    "#d8578f",
    "#8d5bd6",
    "#5f9ecf",
    "#9c6b4e",
    "#7d8288",
)
"""Colours that are legible on white and on near-black."""
ACCENT_COLOR, GOOD_COLOR, BAD_COLOR, MUTED_COLOR = PALETTE[0], PALETTE[4], PALETTE[2], PALETTE[9]

MarkerSymbol = Literal["circle", "open", "cross", "triangle", "diamond", "star"]


@dataclass(frozen=True)
class ChartAxis:
    """Axis of a panel: its label and scale, and the ticks if values have names."""

    label: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float] | None = None
    percent: bool = False


@dataclass(frozen=True)
class LineMark:
    """Curve; with `steps`, each value is held until the next."""

    x: Sequence[float]
    y: Sequence[float]
    name: str
    color: str = ACCENT_COLOR
    dash: bool = False
    steps: bool = False
    markers: bool = False


@dataclass(frozen=True)
class BandMark:
    """Area between two curves."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    name: str
    color: str = ACCENT_COLOR


@dataclass(frozen=True)
class ScatterMark:
    """Points, with optional error bars and a hover text for each on the page."""

    x: Sequence[float]
    y: Sequence[float]
    name: str
    color: str = ACCENT_COLOR
    symbol: MarkerSymbol = "circle"
    texts: Sequence[str] = ()
    errors: Sequence[float] = ()
    size: float = 5.0
    opacity: float = 0.7


@dataclass(frozen=True)
class BarMark:
    """Horizontal bars with intervals, the first at the top."""

    labels: Sequence[str]
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    name: str
    color: str = ACCENT_COLOR


@dataclass(frozen=True)
class ReferenceLine:
    """Straight line across the panel at an x or a y."""

    at: float
    name: str
    across: Literal["x", "y"] = "x"
    color: str = MUTED_COLOR
    dash: bool = True


@dataclass(frozen=True)
class SpanMark:
    """Shaded range of x."""

    low: float
    high: float
    name: str
    color: str = GOOD_COLOR


@dataclass(frozen=True)
class HeatmapMark:
    """Surface; cells without data are None."""

    x: Sequence[float]
    y: Sequence[float]
    z: Sequence[Sequence[float | None]]
    name: str
    diverging: bool = False


ChartMark = LineMark | BandMark | ScatterMark | BarMark | ReferenceLine | SpanMark | HeatmapMark


@dataclass(frozen=True)
class ChartPanel:
    """One set of axes with its marks; a `note` replaces the plot if there is nothing to draw."""

    title: str
    x: ChartAxis
    y: ChartAxis
    marks: tuple[ChartMark, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """Figure of one or more panels; `key` is its file name, the caption says how to read it."""

    key: str
    title: str
    caption: str
    panels: tuple[ChartPanel, ...]
    wide: bool = False

    @property
    def legend(self) -> list[ChartMark]:
        """One mark per name, for the legend that all panels share; empty for a single name."""
        named: dict[str, ChartMark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                if mark.name and not isinstance(mark, HeatmapMark):
                    named.setdefault(mark.name, mark)
        return list(named.values()) if len(named) > 1 else []
