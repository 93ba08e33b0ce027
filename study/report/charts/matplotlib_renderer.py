"""Matplotlib renderer: charts as PNG, SVG and PDF at publication size, with embedded fonts."""

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

from study.report.charts.spec import (
    BandMark,
    BarMark,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    HeatmapMark,
    LineMark,
    ReferenceLine,
    ScatterMark,
    SpanMark,
)
from study.utils.files import safe_filename
from study.utils.parallel import parallel_map

FIGURE_FORMATS = ("png", "svg", "pdf")

MIN_FILES_FOR_PARALLEL_SAVING = 60
"""Starting a worker process for fewer files takes longer than it saves."""

# Text becomes outlines in SVG and embedded TrueType in PDF, so figures look the same everywhere.
# The salt replaces random ids, so that equal tables give equal bytes.
_RC_PARAMS: dict[Any, Any] = {
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
_MATPLOTLIB_MARKERS = {
    "circle": "o",
    "open": "o",
    "cross": "x",
    "triangle": "v",
    "diamond": "D",
    "star": "*",
}
_PANEL_WIDTH_INCHES, _PANEL_HEIGHT_INCHES = 2.7, 2.25


def save_charts(
    charts: Sequence[Chart], folder: Path, formats: Sequence[str] = FIGURE_FORMATS
) -> list[Path]:
    """Write all charts and return the paths; many files are drawn on several cores."""
    helpers = None if len(charts) * len(formats) >= MIN_FILES_FOR_PARALLEL_SAVING else 0
    files = parallel_map(
        partial(save_chart, folder=folder, formats=formats), charts, helpers=helpers
    )
    return [path for paths in files for path in paths]


def save_chart(chart: Chart, folder: Path, formats: Iterable[str] = FIGURE_FORMATS) -> list[Path]:
    """Write the chart as `folder/key.FORMAT` and return the paths."""
    paths = []
    with rc_context(_RC_PARAMS):
        figure = draw_figure(chart)
        for kind in formats:
            path = folder / f"{safe_filename(chart.key)}.{kind}"
            metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Creator": None}
            metadata |= {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
            figure.savefig(path, dpi=160, metadata=metadata)
            paths.append(path)
    return paths


def draw_figure(chart: Chart) -> Figure:
    """Draw the chart without pyplot, which would keep global state."""
    panels = chart.panels
    columns = 1 if chart.wide else min(3, max(len(panels), 1))
    rows = math.ceil(len(panels) / columns)
    width = 5.6 if chart.wide or len(panels) == 1 else _PANEL_WIDTH_INCHES * columns
    heights = [
        max(_panel_height_inches(p) for p in panels[r * columns : (r + 1) * columns])
        for r in range(rows)
    ]
    figure = Figure(figsize=(width, sum(heights) + 0.2))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, columns, height_ratios=heights)
    bars = any(isinstance(m, BarMark) for p in panels for m in p.marks)
    legend_rows = math.ceil(len(chart.legend) / (4 if width > 5 else 2))
    legend_height = 0.14 * legend_rows + (0.12 if legend_rows else 0.0)
    total = sum(heights) + 0.2 + legend_height
    figure.set_figheight(total)
    figure.subplots_adjust(
        left=(1.25 if bars else 0.58) / width,
        right=1 - (0.7 if _has_heatmap(chart) else 0.12) / width,
        bottom=(0.5 + legend_height) / total,
        top=1 - 0.32 / total,
        wspace=0.75 if bars or _has_heatmap(chart) else 0.34,
        hspace=0.55,
    )
    legend: dict[str, Any] = {}
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(grid[index // columns, index % columns])
        _draw_panel(axes, panel)
        handles, labels = axes.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            legend.setdefault(label, handle)
    if len(legend) > 1:
        figure.legend(
            list(legend.values()),
            list(legend),
            loc="lower center",
            ncols=min(len(legend), 4 if width > 5 else 2),
            frameon=False,
            handlelength=1.4,
            columnspacing=1.2,
        )
    return figure


def _has_heatmap(chart: Chart) -> bool:
    return any(isinstance(m, HeatmapMark) for p in chart.panels for m in p.marks)


def _panel_height_inches(panel: ChartPanel) -> float:
    bars = [len(m.labels) for m in panel.marks if isinstance(m, BarMark)]
    return max(1.6, 0.8 + 0.26 * max(bars)) if bars else _PANEL_HEIGHT_INCHES


def _draw_panel(axes: Axes, panel: ChartPanel) -> None:
    axes.set_title(panel.title, loc="left")
    if panel.note:
        axes.set_axis_off()
        note = textwrap.fill(panel.note, 42)
        axes.text(0.0, 0.95, note, transform=axes.transAxes, va="top", color="0.35")
        return
    groups = [m for m in panel.marks if isinstance(m, BarMark)]
    for mark in panel.marks:
        if isinstance(mark, BarMark):
            _draw_bars(axes, mark, groups.index(mark), len(groups))
        else:
            _draw_mark(axes, mark)
    _configure_axis(axes, panel.x, "x")
    _configure_axis(axes, panel.y, "y")
    if groups:
        axes.set_yticks(range(len(groups[0].labels)), list(groups[0].labels))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)


def _configure_axis(axes: Axes, axis: ChartAxis, which: str) -> None:
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


def _draw_mark(axes: Axes, mark: ChartMark) -> None:
    match mark:
        case LineMark():
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
        case BandMark():
            axes.fill_between(
                mark.x, mark.low, mark.high, color=mark.color, alpha=0.2, lw=0, label=mark.name
            )
        case ScatterMark():
            _draw_scatter(axes, mark)
        case ReferenceLine():
            line = axes.axvline if mark.across == "x" else axes.axhline
            line(mark.at, color=mark.color, lw=1, ls=":" if mark.dash else "-", label=mark.name)
        case SpanMark():
            axes.axvspan(mark.low, mark.high, color=mark.color, alpha=0.12, lw=0, label=mark.name)
        case HeatmapMark():
            _draw_heatmap(axes, mark)
        case BarMark():
            raise AssertionError("_draw_panel draws bars, because it knows how many share a label")


def _draw_scatter(axes: Axes, mark: ScatterMark) -> None:
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
        marker=_MATPLOTLIB_MARKERS[mark.symbol],
        ms=mark.size * 0.75,
        color=mark.color,
        alpha=mark.opacity,
        mew=0.8 if mark.symbol in ("open", "cross") else 0,
        label=mark.name,
        rasterized=len(mark.x) > 500,
        **hollow,
    )


def _draw_bars(axes: Axes, mark: BarMark, index: int, n_groups: int) -> None:
    height = 0.8 / n_groups
    y = np.arange(len(mark.labels)) + (index - (n_groups - 1) / 2) * height
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


def _draw_heatmap(axes: Axes, mark: HeatmapMark) -> None:
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
