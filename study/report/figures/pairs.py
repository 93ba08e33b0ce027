"""Figure of interactions: surfaces over two hyperparameters, empty where no trials are near."""

from __future__ import annotations

import pandas as pd

from search_spaces.space import SearchSpace
from study.analyses.findings import StudyFindings
from study.report.charts.spec import Chart, ChartMark, ChartPanel, HeatmapMark, ScatterMark
from study.report.formatting import axis_positions, metric_label, param_axis, param_label
from study.trials.selection import select_validation_trials
from study.trials.table import PARAM_PREFIX


def build_pair_surface_chart(findings: StudyFindings, loss: str) -> Chart | None:
    """Plot one panel per surface; None if there is no surface."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    if not found.surfaces:
        return None
    trials = select_validation_trials(findings.table, loss)
    trials = trials[trials["score"].notna()]
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    panels = tuple(_surface_panel(surface, space, trials, objective) for surface in found.surfaces)
    return Chart(
        f"pairs-{loss}",
        f"Hyperparameters that interact: {loss}",
        "Score of the model with the other hyperparameters at good values. Cells without a trial "
        "nearby are empty.",
        panels,
    )


def _surface_panel(
    surface: pd.DataFrame, space: SearchSpace, trials: pd.DataFrame, objective: str
) -> ChartPanel:
    first, second = str(surface["knob"].iloc[0]), str(surface["other"].iloc[0])
    shown = surface["mean"].where(surface["supported"])
    grid = surface.assign(shown=shown).pivot(index="other_unit", columns="unit", values="shown")
    a, b = space.distributions[first], space.distributions[second]
    xs = axis_positions(a, surface.drop_duplicates("unit").sort_values("unit")["value"])
    ys = axis_positions(
        b, surface.drop_duplicates("other_unit").sort_values("other_unit")["other_value"]
    )
    z = [[None if pd.isna(v) else float(v) for v in row] for row in grid.to_numpy()]
    dots = ScatterMark(
        axis_positions(a, trials[PARAM_PREFIX + first]),
        axis_positions(b, trials[PARAM_PREFIX + second]),
        "",
        "#ffffff",
        size=2,
        opacity=0.55,
        texts=[f"{t}: {s:.4f}" for t, s in zip(trials["trial"], trials["score"], strict=True)],
    )
    marks: tuple[ChartMark, ...] = (HeatmapMark(xs, ys, z, objective), dots)
    title = f"{param_label(space, first)} × {param_label(space, second)}"
    return ChartPanel(title, param_axis(space, first), param_axis(space, second), marks)
