"""Figure of the leaderboard: best and published score of every loss, and the baseline."""

from __future__ import annotations

from study.analyses.findings import StudyFindings
from study.analyses.leaderboard import UNTRAINED_BACKBONE_LABEL
from study.report.charts.spec import (
    ACCENT_COLOR,
    BAD_COLOR,
    MUTED_COLOR,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    MarkerSymbol,
    ReferenceLine,
    ScatterMark,
)
from study.report.formatting import metric_label

_SCORE_STYLES: tuple[tuple[str, str, str, MarkerSymbol], ...] = (
    ("best", "best trial", ACCENT_COLOR, "circle"),
    ("repeated", "its repeats (mean)", ACCENT_COLOR, "open"),
    ("published", "published point", BAD_COLOR, "diamond"),
)


def build_leaderboard_chart(findings: StudyFindings) -> Chart:
    """Plot the scores of each loss on one line, the best loss on top."""
    frame = findings.leaderboard
    losses = frame[frame["loss"] != UNTRAINED_BACKBONE_LABEL].reset_index(drop=True)
    positions = [float(len(losses) - 1 - i) for i in range(len(losses))]
    names = list(losses["loss"])
    marks: list[ChartMark] = []
    for column, label, color, symbol in _SCORE_STYLES:
        if column not in losses or losses[column].isna().all():
            continue
        values = [float(v) for v in losses[column]]
        texts = [f"{n}: {label} {v:.4f}" for n, v in zip(names, values, strict=True)]
        marks.append(
            ScatterMark(values, positions, label, color, symbol, texts, size=8, opacity=1.0)
        )
    untrained = frame.loc[frame["loss"] == UNTRAINED_BACKBONE_LABEL, "best"]
    if len(untrained):
        marks.append(
            ReferenceLine(float(untrained.iloc[0]), UNTRAINED_BACKBONE_LABEL, color=MUTED_COLOR)
        )
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    ticks = tuple((p, n) for p, n in zip(positions, names, strict=True))
    panel = ChartPanel(
        "",
        ChartAxis(f"{objective} on validation classes"),
        ChartAxis("", ticks=ticks, limits=(-0.6, len(names) - 0.4)),
        tuple(marks),
        note="" if marks else "No trial has a score yet.",
    )
    return Chart(
        "leaderboard",
        "Leaderboard",
        "The score of the best trial is optimistic, because it is the best of many; the mean of "
        "its repeats with other seeds is not.",
        (panel,),
        wide=True,
    )
