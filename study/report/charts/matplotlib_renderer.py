"""How does a chart look in print? PNG, SVG and PDF at publication size, fonts inside."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from study.report.chart import Axis, Band, Bars, Chart, Dots, Heat, Line, Mark, Panel, Rule, Span
from study.report.tables import safe_name
from study.workers import each

FORMATS = ("png", "svg", "pdf")

WORTH_HELP = 60
"""With fewer files a helper takes longer to start than it saves."""

# Text is outlined in SVG and embedded as TrueType in PDF: both look the same everywhere.
# The salt replaces random ids, so that equal tables give equal bytes.
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "dml-study",
    "mathtext.default": "regular",
    "axes.unicode_minus": True,
    "text.parse_math": False,
}
_MARKERS = {"circle": "o", "open": "o", "cross": "x", "triangle": "v", "diamond": "D", "star": "*"}
_WIDTH, _HEIGHT = 2.7, 2.25


def save_all(charts: Sequence[Chart], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write all charts, many of them with the help of the other cores."""
    helpers = None if len(charts) * len(formats) >= WORTH_HELP else 0
    files = each(partial(save, folder=folder, formats=formats), charts, helpers=helpers)
    return [path for paths in files for path in paths]


def save(chart: Chart, folder: Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write the chart as `folder/key.FORMAT` and return the paths."""
    paths = []
    with rc_context(_STYLE):
        figure = draw(chart)
        for kind in formats:
            path = folder / f"{safe_name(chart.key)}.{kind}"
            metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Creator": None}
            metadata |= {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
            figure.savefig(path, dpi=160, metadata=metadata)
            paths.append(path)
    return paths


def draw(chart: Chart) -> Figure:
    """A figure without pyplot: nothing global, nothing to close."""
    panels = chart.panels
    columns = 1 if chart.wide else min(3, max(len(panels), 1))
    rows = math.ceil(len(panels) / columns)
    width = 5.6 if chart.wide or len(panels) == 1 else _WIDTH * columns
    heights = [
        max(_panel_height(p) for p in panels[r * columns : (r + 1) * columns]) for r in range(rows)
    ]
    figure = Figure(figsize=(width, sum(heights) + 0.2))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, columns, height_ratios=heights)
    bars = any(isinstance(m, Bars) for p in panels for m in p.marks)
    legend_rows = math.ceil(len(chart.legend) / (4 if width > 5 else 2))
    foot = 0.14 * legend_rows + (0.12 if legend_rows else 0.0)
    total = sum(heights) + 0.2 + foot
    figure.set_figheight(total)
    figure.subplots_adjust(
        left=(1.25 if bars else 0.58) / width,
        right=1 - (0.7 if _has_heat(chart) else 0.12) / width,
        bottom=(0.5 + foot) / total,
        top=1 - 0.32 / total,
        wspace=0.75 if bars or _has_heat(chart) else 0.34,
        hspace=0.55,
    )
    known: dict[str, Any] = {}
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(grid[index // columns, index % columns])
        _panel(axes, panel)
        handles, labels = axes.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            known.setdefault(label, handle)
    if len(known) > 1:
        figure.legend(
            list(known.values()),
            list(known),
            loc="lower center",
            ncols=min(len(known), 4 if width > 5 else 2),
            frameon=False,
            handlelength=1.4,
            columnspacing=1.2,
        )
    return figure


def _has_heat(chart: Chart) -> bool:
    return any(isinstance(m, Heat) for p in chart.panels for m in p.marks)


def _panel_height(panel: Panel) -> float:
    bars = [len(m.labels) for m in panel.marks if isinstance(m, Bars)]
    return max(1.6, 0.8 + 0.26 * max(bars)) if bars else _HEIGHT


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left")
    if panel.note:
        axes.set_axis_off()
        words = textwrap.fill(panel.note, 42)
        axes.text(0.0, 0.95, words, transform=axes.transAxes, va="top", color="0.35")
        return
    groups = [m for m in panel.marks if isinstance(m, Bars)]
    for mark in panel.marks:
        if isinstance(mark, Bars):
            _bars(axes, mark, groups.index(mark), len(groups))
        else:
            _mark(axes, mark)
    _axis(axes, panel.x, "x")
    _axis(axes, panel.y, "y")
    if groups:
        axes.set_yticks(range(len(groups[0].labels)), list(groups[0].labels))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)


def _axis(axes: Axes, axis: Axis, which: str) -> None:
    getattr(axes, f"set_{which}label")(axis.label)
    if axis.log:
        getattr(axes, f"set_{which}scale")("log")
    if axis.limits:
        getattr(axes, f"set_{which}lim")(*axis.limits)
    target = getattr(axes, f"{which}axis")
    if axis.ticks:
        target.set_ticks([t for t, _ in axis.ticks], [s for _, s in axis.ticks])
        target.set_minor_locator(NullLocator())
        if len(axis.ticks) > 4 and which == "x":
            axes.tick_params(axis="x", rotation=30)
    elif axis.percent:
        target.set_major_formatter(PercentFormatter(1.0))


def _mark(axes: Axes, mark: Mark) -> None:
    match mark:
        case Line():
            style: dict[str, Any] = {"drawstyle": "steps-post"} if mark.steps else {}
            axes.plot(
                mark.x,
                mark.y,
                color=mark.color,
                lw=1.4,
                ls="--" if mark.dash else "-",
                label=mark.name or None,
                marker="o" if mark.markers else None,
                ms=3,
                **style,
            )
        case Band():
            axes.fill_between(
                mark.x, mark.low, mark.high, color=mark.color, alpha=0.2, lw=0, label=mark.name
            )
        case Dots():
            _dots(axes, mark)
        case Rule():
            line = axes.axvline if mark.across == "x" else axes.axhline
            line(mark.at, color=mark.color, lw=1, ls=":" if mark.dash else "-", label=mark.name)
        case Span():
            axes.axvspan(mark.low, mark.high, color=mark.color, alpha=0.12, lw=0, label=mark.name)
        case Heat():
            _heat(axes, mark)
        case Bars():
            raise AssertionError("bars are drawn together")


def _dots(axes: Axes, mark: Dots) -> None:
    hollow: dict[str, Any] = {"mfc": "none"} if mark.symbol == "open" else {}
    if len(mark.errors):
        axes.errorbar(
            mark.x,
            mark.y,
            yerr=np.asarray(mark.errors, dtype=float),
            fmt="none",
            ecolor=mark.color,
            lw=1,
            capsize=2,
        )
    axes.plot(
        mark.x,
        mark.y,
        ls="",
        marker=_MARKERS[mark.symbol],
        ms=mark.size * 0.75,
        color=mark.color,
        alpha=mark.opacity,
        mew=0.8 if mark.symbol in ("open", "cross") else 0,
        label=mark.name,
        rasterized=len(mark.x) > 500,
        **hollow,
    )


def _bars(axes: Axes, mark: Bars, place: int, of: int) -> None:
    height = 0.8 / of
    y = np.arange(len(mark.labels)) + (place - (of - 1) / 2) * height
    values = np.asarray(mark.values, dtype=float)
    errors = np.abs(np.stack([values - np.asarray(mark.low), np.asarray(mark.high) - values]))
    axes.barh(
        y,
        values,
        height=height * 0.92,
        color=mark.color,
        alpha=0.85,
        label=mark.name,
        xerr=errors,
        error_kw={"lw": 0.9, "capsize": 1.5, "ecolor": "0.3"},
    )


def _heat(axes: Axes, mark: Heat) -> None:
    z = np.array([[np.nan if v is None else v for v in row] for row in mark.z], dtype=float)
    mesh = axes.pcolormesh(
        np.asarray(mark.x),
        np.asarray(mark.y),
        np.ma.masked_invalid(z),
        shading="nearest",
        cmap="RdBu" if mark.diverging else "viridis",
        rasterized=True,
    )
    axes.figure.colorbar(mesh, ax=axes, label=mark.name, fraction=0.06, pad=0.03)
