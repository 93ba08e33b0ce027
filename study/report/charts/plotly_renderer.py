"""Plotly renderer: panels as plotly.js JSON for the page, whose theme adds the colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from study.report.charts.spec import (
    BandMark,
    BarMark,
    ChartAxis,
    ChartMark,
    ChartPanel,
    HeatmapMark,
    LineMark,
    ReferenceLine,
    ScatterMark,
    SpanMark,
)

_PLOTLY_SYMBOLS = {
    "circle": "circle",
    "open": "circle-open",
    "cross": "x-thin-open",
    "triangle": "triangle-down",
    "diamond": "diamond",
    "star": "star",
}


def build_plotly_figure(panel: ChartPanel) -> dict[str, Any]:
    """Return `data` and `layout` of one panel."""
    traces: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    for mark in panel.marks:
        traces += _mark_traces(mark, shapes)
    bars = any(isinstance(mark, BarMark) for mark in panel.marks)
    layout: dict[str, Any] = {
        "xaxis": _axis_layout(panel.x),
        "yaxis": _axis_layout(panel.y)
        | ({"autorange": "reversed", "automargin": True} if bars else {}),
        "shapes": shapes,
        # The page draws one legend for all panels of a chart.
        "showlegend": False,
        "barmode": "group",
        "height": _panel_height_pixels(panel),
    }
    return {"data": traces, "layout": layout}


def _panel_height_pixels(panel: ChartPanel) -> int:
    bars = [len(m.labels) for m in panel.marks if isinstance(m, BarMark)]
    return max(220, 90 + 34 * max(bars)) if bars else 250


def _round_for_json(values: Sequence[float]) -> list[float | None]:
    """Round to five digits, more than a screen shows; NaN becomes None, since JSON has no NaN."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in map(float, values)]


def _axis_layout(axis: ChartAxis) -> dict[str, Any]:
    out: dict[str, Any] = {"title": {"text": axis.label}, "automargin": True}
    if axis.log:
        out["type"] = "log"
    if axis.percent:
        out["tickformat"] = ".0%"
    if axis.ticks:
        out |= {"tickvals": [t for t, _ in axis.ticks], "ticktext": [s for _, s in axis.ticks]}
    if axis.limits:
        low, high = axis.limits
        out["range"] = [math.log10(low), math.log10(high)] if axis.log else [low, high]
    return out


def _mark_traces(mark: ChartMark, shapes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    match mark:
        case LineMark():
            return [_line_trace(mark)]
        case BandMark():
            return _band_traces(mark)
        case ScatterMark():
            return [_scatter_trace(mark)]
        case BarMark():
            return [_bar_trace(mark)]
        case HeatmapMark():
            return [_heatmap_trace(mark)]
        case ReferenceLine() | SpanMark():
            shapes.append(_overlay_shape(mark))
            return []


def _line_trace(mark: LineMark) -> dict[str, Any]:
    style = {"color": mark.color, "width": 2, "dash": "dash" if mark.dash else "solid"}
    return {
        "type": "scatter",
        "mode": "lines+markers" if mark.markers else "lines",
        "x": _round_for_json(mark.x),
        "y": _round_for_json(mark.y),
        "name": mark.name,
        "line": style | ({"shape": "hv"} if mark.steps else {}),
        "connectgaps": False,
    }


def _band_traces(mark: BandMark) -> list[dict[str, Any]]:
    """Return a low edge, and a high edge filled down to it, for every segment without gaps.

    Plotly would fill across the gaps of a single trace.
    """
    traces = []
    points = zip(*map(_round_for_json, (mark.x, mark.low, mark.high)), strict=True)
    for is_complete, segment in groupby(points, key=lambda point: None not in point):
        if not is_complete:
            continue
        x, low, high = map(list, zip(*segment, strict=True))
        edge = {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "line": {"width": 0, "color": mark.color},
            "hoverinfo": "skip",
        }
        filled = {"name": mark.name, "fill": "tonexty", "fillcolor": mark.color + "33"}
        traces += [edge | {"y": low, "name": ""}, edge | {"y": high} | filled]
    return traces


def _scatter_trace(mark: ScatterMark) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": _round_for_json(mark.x),
        "y": _round_for_json(mark.y),
        "name": mark.name,
        "marker": {
            "color": mark.color,
            "symbol": _PLOTLY_SYMBOLS[mark.symbol],
            "size": mark.size + 2,
            "opacity": mark.opacity,
            "line": {"width": 1.5 if mark.symbol in ("open", "cross") else 0, "color": mark.color},
        },
    }
    if mark.texts:
        trace |= {"hovertext": list(mark.texts), "hoverinfo": "text"}
    if len(mark.errors):
        trace["error_y"] = {"type": "data", "array": _round_for_json(mark.errors), "thickness": 1.5}
    return trace


def _bar_trace(mark: BarMark) -> dict[str, Any]:
    values, low, high = map(_round_for_json, (mark.values, mark.low, mark.high))
    plus = [None if v is None or h is None else h - v for v, h in zip(values, high, strict=True)]
    minus = [None if v is None or b is None else v - b for v, b in zip(values, low, strict=True)]
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(mark.labels),
        "x": values,
        "name": mark.name,
        "marker": {"color": mark.color, "opacity": 0.85},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": plus,
            "arrayminus": minus,
            "thickness": 1.5,
            "width": 4,
        },
    }


def _heatmap_trace(mark: HeatmapMark) -> dict[str, Any]:
    rows = [
        [None if v is None or not math.isfinite(v) else float(f"{v:.4g}") for v in row]
        for row in mark.z
    ]
    return {
        "type": "heatmap",
        "x": _round_for_json(mark.x),
        "y": _round_for_json(mark.y),
        "z": rows,
        "name": "",
        "colorscale": "RdBu" if mark.diverging else "Viridis",
        "colorbar": {"title": {"text": mark.name, "side": "right"}, "thickness": 12},
        "hoverongaps": False,
        "zsmooth": False,
    }


def _overlay_shape(mark: ReferenceLine | SpanMark) -> dict[str, Any]:
    if isinstance(mark, SpanMark):
        return {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": mark.low,
            "x1": mark.high,
            "y0": 0,
            "y1": 1,
            "fillcolor": mark.color,
            "opacity": 0.13,
            "line": {"width": 0},
            "layer": "below",
        }
    line = {"color": mark.color, "width": 1.5, "dash": "dot" if mark.dash else "solid"}
    if mark.across == "x":
        return {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": mark.at,
            "x1": mark.at,
            "y0": 0,
            "y1": 1,
            "line": line,
        }
    return {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": mark.at,
        "y1": mark.at,
        "line": line,
    }


def render_legend_key(mark: ChartMark) -> str:
    """Return a small inline SVG of a mark for the legend; it contains no user text."""
    color = mark.color if not isinstance(mark, HeatmapMark) else "#888888"
    match mark:
        case LineMark() | ReferenceLine():
            dash = ' stroke-dasharray="3 3"' if mark.dash else ""
            inner = f'<path d="M1 6h20" stroke="{color}" stroke-width="2"{dash}/>'
        case BandMark() | SpanMark() | BarMark():
            opacity = 0.85 if isinstance(mark, BarMark) else 0.28
            inner = f'<rect x="2" y="1" width="18" height="10" fill="{color}" opacity="{opacity}"/>'
        case _:
            inner = _symbol_svg(mark.symbol if isinstance(mark, ScatterMark) else "circle", color)
    return f'<svg width="22" height="12" viewBox="0 0 22 12" aria-hidden="true">{inner}</svg>'


def _symbol_svg(name: str, color: str) -> str:
    if name == "open":
        return f'<circle cx="11" cy="6" r="3.6" fill="none" stroke="{color}" stroke-width="1.6"/>'
    if name == "cross":
        return f'<path d="M7 2l8 8M15 2l-8 8" stroke="{color}" stroke-width="1.8"/>'
    if name == "diamond":
        return f'<path d="M11 1l5 5-5 5-5-5z" fill="{color}"/>'
    if name == "triangle":
        return f'<path d="M6 2h10l-5 8z" fill="{color}"/>'
    return f'<circle cx="11" cy="6" r="4" fill="{color}"/>'
