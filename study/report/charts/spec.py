"""What is in a figure, before anything draws it?

One description serves the interactive page and the print: panels with axes and marks, no colours
of a theme and no pixels. `draw_plotly` and `draw_matplotlib` know how to draw it.
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
"""Colours that read on white and on near-black."""
ACCENT, GOOD, BAD, QUIET = PALETTE[0], PALETTE[4], PALETTE[2], PALETTE[9]

Symbol = Literal["circle", "open", "cross", "triangle", "diamond", "star"]


@dataclass(frozen=True)
class Axis:
    """A label and, where values are names, the places of the ticks."""

    label: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float] | None = None
    percent: bool = False


@dataclass(frozen=True)
class Line:
    """A curve; `steps` holds each value until the next."""

    x: Sequence[float]
    y: Sequence[float]
    name: str
    color: str = ACCENT
    dash: bool = False
    steps: bool = False
    markers: bool = False


@dataclass(frozen=True)
class Band:
    """The area between two curves."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    name: str
    color: str = ACCENT


@dataclass(frozen=True)
class Dots:
    """Single points, with text for each on the page and optional error bars."""

    x: Sequence[float]
    y: Sequence[float]
    name: str
    color: str = ACCENT
    symbol: Symbol = "circle"
    texts: Sequence[str] = ()
    errors: Sequence[float] = ()
    size: float = 5.0
    opacity: float = 0.7


@dataclass(frozen=True)
class Bars:
    """Horizontal bars with intervals, first at the top; `y` positions come from the order."""

    labels: Sequence[str]
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    name: str
    color: str = ACCENT


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel, at an x or at a y."""

    at: float
    name: str
    across: Literal["x", "y"] = "x"
    color: str = QUIET
    dash: bool = True


@dataclass(frozen=True)
class Span:
    """A shaded range of x."""

    low: float
    high: float
    name: str
    color: str = GOOD


@dataclass(frozen=True)
class Heat:
    """A surface; None where there are no data."""

    x: Sequence[float]
    y: Sequence[float]
    z: Sequence[Sequence[float | None]]
    name: str
    diverging: bool = False


Mark = Line | Band | Dots | Bars | Rule | Span | Heat


@dataclass(frozen=True)
class Panel:
    """One set of axes; a `note` replaces the plot where there is nothing honest to draw."""

    title: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure: the file's name, a caption that says how to read it, and its panels."""

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    wide: bool = False

    @property
    def legend(self) -> list[Mark]:
        """One mark per name, for the legend all panels share."""
        named: dict[str, Mark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                if mark.name and not isinstance(mark, Heat):
                    named.setdefault(mark.name, mark)
        return list(named.values()) if len(named) > 1 else []
