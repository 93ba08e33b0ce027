"""Surfaces over two knobs, empty where nobody looked."""

from __future__ import annotations

import pandas as pd

from search_spaces.space import Space
from study.analyses.findings import Findings
from study.analyses.samples import searching
from study.report.chart import Chart, Dots, Heat, Mark, Panel
from study.report.words import knob_axis, knob_label, metric_label, places
from study.table import KNOB


def chart(findings: Findings, loss: str) -> Chart | None:
    """One panel per pair; None when no pair is worth one."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    if not found.surfaces:
        return None
    trials = searching(findings.table, loss)
    trials = trials[trials["score"].notna()]
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    panels = tuple(_panel(surface, space, trials, objective) for surface in found.surfaces)
    return Chart(
        f"pairs-{loss}",
        f"Knobs that act together: {loss}",
        "The model's score with the other knobs good. Empty cells have no trial near them.",
        panels,
    )


def _panel(surface: pd.DataFrame, space: Space, trials: pd.DataFrame, objective: str) -> Panel:
    first, second = str(surface["knob"].iloc[0]), str(surface["other"].iloc[0])
    shown = surface["mean"].where(surface["supported"])
    grid = surface.assign(shown=shown).pivot(index="other_unit", columns="unit", values="shown")
    a, b = space.distributions[first], space.distributions[second]
    xs = places(a, surface.drop_duplicates("unit").sort_values("unit")["value"])
    ys = places(b, surface.drop_duplicates("other_unit").sort_values("other_unit")["other_value"])
    z = [[None if pd.isna(v) else float(v) for v in row] for row in grid.to_numpy()]
    dots = Dots(
        places(a, trials[KNOB + first]),
        places(b, trials[KNOB + second]),
        "",
        "#ffffff",
        size=2,
        opacity=0.55,
        texts=[f"{t}: {s:.4f}" for t, s in zip(trials["trial"], trials["score"], strict=True)],
    )
    marks: tuple[Mark, ...] = (Heat(xs, ys, z, objective), dots)
    title = f"{knob_label(space, first)} × {knob_label(space, second)}"
    return Panel(title, knob_axis(space, first), knob_axis(space, second), marks)
