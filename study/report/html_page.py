"""How do charts and tables become one HTML file that needs nothing else?"""

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

from study.report import grid
from study.report.answer import Answer
from study.report.chart import Chart
from study.report.draw_plotly import figure, key


@dataclass(frozen=True)
class Block:
    """A piece of a section: prose, a chart or a table."""

    text: str = ""
    chart: Chart | None = None
    table: pd.DataFrame | None = None
    caption: str = ""
    warn: bool = False


@dataclass(frozen=True)
class Section:
    """A heading with blocks; `key` is its anchor."""

    key: str
    title: str
    blocks: Sequence[Block]
    lead: str = ""


def render(
    *, study: str, facts: Sequence[tuple[str, str]], answer: Answer, sections: Sequence[Section]
) -> str:
    """The page; equal arguments give equal bytes."""
    figures: dict[str, Any] = {}
    for section in sections:
        for block in section.blocks:
            if block.chart:
                for i, panel in enumerate(block.chart.panels):
                    if not panel.note:
                        figures[panel_id(block.chart, i)] = _escaped(figure(panel))
    environment = Environment(
        loader=PackageLoader("study.report", "."), autoescape=True, undefined=StrictUndefined
    )
    script, plotly = _asset("page.js"), get_plotlyjs()
    return environment.get_template("page.html").render(
        study=study,
        facts=facts,
        answer=answer,
        sections=sections,
        panel_id=panel_id,
        grid=grid.columns,
        rows=grid.rows,
        key=lambda mark: Markup(key(mark)),
        css=Markup(_asset("page.css")),
        script=Markup(script),
        plotly=Markup(plotly),
        policy=Markup(_policy(plotly, script)),
        # "<" never appears in the data, so no name can end the element that holds it.
        figures=Markup(json.dumps(figures, separators=(",", ":")).replace("<", "\\u003c")),
    )


def panel_id(chart: Chart, index: int) -> str:
    """A fixed, harmless element id."""
    digest = hashlib.sha256(chart.key.encode()).hexdigest()[:10]
    return f"plot-{digest}-{index}"


def _asset(name: str) -> str:
    return files("study.report").joinpath(name).read_text("utf-8")


def _policy(*scripts: str) -> str:
    """Only our own scripts run, and nothing is fetched: the browser enforces both."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:"
    )


def _escaped(value: Any) -> Any:
    """Plotly reads some HTML in its texts; user strings must stay text."""
    if isinstance(value, str):
        return html.escape(value, quote=False)
    if isinstance(value, list):
        return [_escaped(v) for v in value]
    if isinstance(value, dict):
        return {k: _escaped(v) for k, v in value.items()}
    return value
