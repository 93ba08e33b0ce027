"""Figure of the importances: share of the variance that each hyperparameter explains."""

from __future__ import annotations

from study.analyses.findings import StudyFindings
from study.analyses.surrogate.surrogate import Refusal
from study.report.charts.spec import ACCENT_COLOR, PALETTE, BarMark, Chart, ChartAxis, ChartPanel
from study.report.formatting import param_label


def build_importance_chart(findings: StudyFindings, loss: str) -> Chart:
    """Plot first-order and total shares in the whole space and among the better half."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    panels = []
    for title, frame in (
        ("In the whole space", found.importance),
        ("Among settings above the median", found.good_importance),
    ):
        x = ChartAxis("share of variance", percent=True, limits=(0.0, 1.05))
        if isinstance(frame, Refusal):
            panels.append(ChartPanel(title, x, ChartAxis(""), note=frame.reason))
            continue
        labels = [param_label(space, k) for k in frame["knob"]]
        marks = tuple(
            BarMark(
                labels,
                list(frame[name]),
                list(frame[f"{name}_low"]),
                list(frame[f"{name}_high"]),
                label,
                color,
            )
            for name, label, color in (
                ("total", "with interactions", ACCENT_COLOR),
                ("first", "alone", PALETTE[1]),
            )
        )
        panels.append(ChartPanel(title, x, ChartAxis(""), marks))
    return Chart(
        f"importance-{loss}",
        f"Which hyperparameters matter: {loss}",
        "Sobol shares with 90 % bands, uniform over the searched ranges on their own scales. The "
        "gap between the two bars of a hyperparameter is its interaction with others.",
        tuple(panels),
    )
