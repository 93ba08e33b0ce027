"""Shares of the score's variance that each knob explains."""

from __future__ import annotations

from study.analyses.findings import Findings
from study.analyses.surrogate import Refusal
from study.report.chart import ACCENT, PALETTE, Axis, Bars, Chart, Panel
from study.report.words import knob_label


def chart(findings: Findings, loss: str) -> Chart:
    """First-order and total shares: in the whole space, and among the better half."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    panels = []
    for title, frame in (
        ("In the whole space", found.importance),
        ("Among settings above the median", found.good_importance),
    ):
        x = Axis("share of variance", percent=True, limits=(0.0, 1.05))
        if isinstance(frame, Refusal):
            panels.append(Panel(title, x, Axis(""), note=frame.reason))
            continue
        labels = [knob_label(space, k) for k in frame["knob"]]
        marks = tuple(
            Bars(
                labels,
                list(frame[name]),
                list(frame[f"{name}_low"]),
                list(frame[f"{name}_high"]),
                label,
                color,
            )
            for name, label, color in (
                ("total", "with interactions", ACCENT),
                ("first", "alone", PALETTE[1]),
            )
        )
        panels.append(Panel(title, x, Axis(""), marks))
    return Chart(
        f"importance-{loss}",
        f"Which knobs matter: {loss}",
        "Sobol shares with 90 % bands, uniform over the searched ranges on their own scales. The "
        "gap between the two bars of a knob is what it does together with others.",
        tuple(panels),
    )
