"""Figure of the search history: best score so far against epochs spent, per loss."""

from __future__ import annotations

from study.analyses.findings import StudyFindings
from study.report.charts.spec import (
    PALETTE,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    LineMark,
    ScatterMark,
)
from study.report.formatting import metric_label


def build_history_chart(findings: StudyFindings) -> Chart:
    """Plot the best full-length score as steps and the best trial of each loss as a dot."""
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    marks: list[ChartMark] = []
    for i, loss in enumerate(findings.table.spaces):
        rows = findings.optimization_history[findings.optimization_history["loss"] == loss]
        rows = rows[rows["best"].notna()]
        if rows.empty:
            continue
        color = PALETTE[i % len(PALETTE)]
        marks.append(LineMark(list(rows["spent"]), list(rows["best"]), loss, color, steps=True))
        top = rows.iloc[int(rows["best"].to_numpy(dtype=float).argmax())]
        text = f"{loss}: {top['best']:.4f} after {int(top['spent'])} epochs ({top['trial']})"
        marks.append(
            ScatterMark([float(top["spent"])], [float(top["best"])], "", color, texts=[text])
        )
    panel = ChartPanel(
        "",
        ChartAxis("epochs spent on the loss"),
        ChartAxis(f"best {objective} so far"),
        tuple(marks),
        note="" if marks else "No full-length trial has finished yet.",
    )
    return Chart(
        "history",
        "Tuning history",
        "Higher and further left is better. Epochs of trials that were stopped early are included.",
        (panel,),
        wide=True,
    )
