"""HTML page of a report: one file with charts, tables, styles and scripts, no network needed."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from study.report import html_table
from study.report.charts.plotly_renderer import build_plotly_figure, render_legend_key
from study.report.charts.spec import Chart
from study.report.summary import ReportSummary


@dataclass(frozen=True)
class PageBlock:
    """Part of a section: a paragraph, a chart or a table."""

    text: str = ""
    chart: Chart | None = None
    table: pd.DataFrame | None = None
    caption: str = ""
    warn: bool = False


@dataclass(frozen=True)
class PageSection:
    """Section of the page: a heading and its blocks; `key` is the anchor."""

    key: str
    title: str
    blocks: Sequence[PageBlock]
    lead: str = ""


def render_page(
    *,
    study: str,
    facts: Sequence[tuple[str, str]],
    summary: ReportSummary,
    sections: Sequence[PageSection],
) -> str:
    """Return the page as HTML; equal arguments give equal bytes.

    Args:
        study: Title of the page.
        facts: Names and values below the summary, such as the data set and the backbone.
        summary: Headline and paragraphs of the first screen.
        sections: Sections in the order of the page.
    """
    figures: dict[str, Any] = {}
    for section in sections:
        for block in section.blocks:
            if block.chart:
                for i, panel in enumerate(block.chart.panels):
                    if not panel.note:
                        figures[panel_id(block.chart, i)] = _escape_strings(
                            build_plotly_figure(panel)
                        )
    environment = Environment(
        loader=PackageLoader("study.report", "."), autoescape=True, undefined=StrictUndefined
    )
    script, plotly = _read_asset("page.js"), get_plotlyjs()
    return environment.get_template("page.html").render(
        study=study,
        facts=facts,
        summary=summary,
        sections=sections,
        panel_id=panel_id,
        table_columns=html_table.table_columns,
        table_rows=html_table.table_rows,
        legend_key=lambda mark: Markup(render_legend_key(mark)),
        css=Markup(_read_asset("page.css")),
        script=Markup(script),
        plotly=Markup(plotly),
        policy=Markup(_content_security_policy(plotly, script)),
        # Without "<" in the data, no user string can close the element that holds it.
        figures=Markup(json.dumps(figures, separators=(",", ":")).replace("<", "\\u003c")),
    )


def panel_id(chart: Chart, index: int) -> str:
    """Return an element id that is stable and free of user strings."""
    digest = hashlib.sha256(chart.key.encode()).hexdigest()[:10]
    return f"plot-{digest}-{index}"


def _read_asset(name: str) -> str:
    return files("study.report").joinpath(name).read_text("utf-8")


def _content_security_policy(*scripts: str) -> str:
    """Return a policy with which the browser runs only these scripts and fetches nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:"
    )


def _escape_strings(value: Any) -> Any:
    """Escape every string of a figure, because Plotly interprets some HTML in texts."""
    if isinstance(value, str):
        return html.escape(value, quote=False)
    if isinstance(value, list):
        return [_escape_strings(v) for v in value]
    if isinstance(value, dict):
        return {k: _escape_strings(v) for k, v in value.items()}
    return value
