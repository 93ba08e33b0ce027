"""Best score so far against the epochs spent, one curve per loss."""

from __future__ import annotations

from study.analyses.findings import Findings
from study.report.chart import PALETTE, Axis, Chart, Dots, Line, Mark, Panel
from study.report.words import metric_label


def chart(findings: Findings) -> Chart:
    """Steps for the best full-length score; the best trial of each loss as a dot."""
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    marks: list[Mark] = []
    for i, loss in enumerate(findings.table.spaces):
        rows = findings.history[findings.history["loss"] == loss]
        rows = rows[rows["best"].notna()]
        if rows.empty:
            continue
        color = PALETTE[i % len(PALETTE)]
        marks.append(Line(list(rows["spent"]), list(rows["best"]), loss, color, steps=True))
        top = rows.iloc[int(rows["best"].to_numpy(dtype=float).argmax())]
        text = f"{loss}: {top['best']:.4f} after {int(top['spent'])} epochs ({top['trial']})"
        marks.append(Dots([float(top["spent"])], [float(top["best"])], "", color, texts=[text]))
    panel = Panel(
        "",
        Axis("epochs spent on the loss"),
        Axis(f"best {objective} so far"),
        tuple(marks),
        note="" if marks else "No full-length trial has finished yet.",
    )
    return Chart(
        "history",
        "Tuning history",
        "Higher and further left is better. Epochs of trials that were stopped early count too.",
        (panel,),
        wide=True,
    )
