"""Best and published score of every loss beside the untrained backbone."""

from __future__ import annotations

from study.analyses.findings import Findings
from study.analyses.leaderboard import UNTRAINED
from study.report.chart import ACCENT, BAD, QUIET, Axis, Chart, Dots, Mark, Panel, Rule, Symbol
from study.report.words import metric_label

_KINDS: tuple[tuple[str, str, str, Symbol], ...] = (
    ("best", "best trial", ACCENT, "circle"),
    ("repeated", "its repeats (mean)", ACCENT, "open"),
    ("published", "published point", BAD, "diamond"),
)


def chart(findings: Findings) -> Chart:
    """Dots on one line per loss, best loss on top."""
    board = findings.leaderboard
    losses = board[board["loss"] != UNTRAINED].reset_index(drop=True)
    places = [float(len(losses) - 1 - i) for i in range(len(losses))]
    names = list(losses["loss"])
    marks: list[Mark] = []
    for column, label, color, symbol in _KINDS:
        if column not in losses or losses[column].isna().all():
            continue
        values = [float(v) for v in losses[column]]
        texts = [f"{n}: {label} {v:.4f}" for n, v in zip(names, values, strict=True)]
        marks.append(Dots(values, places, label, color, symbol, texts, size=8, opacity=1.0))
    untrained = board.loc[board["loss"] == UNTRAINED, "best"]
    if len(untrained):
        marks.append(Rule(float(untrained.iloc[0]), UNTRAINED, color=QUIET))
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    ticks = tuple((p, n) for p, n in zip(places, names, strict=True))
    panel = Panel(
        "",
        Axis(f"{objective} on validation classes"),
        Axis("", ticks=ticks, limits=(-0.6, len(names) - 0.4)),
        tuple(marks),
        note="" if marks else "No trial has a score yet.",
    )
    return Chart(
        "leaderboard",
        "Leaderboard",
        "The best trial is picked as the best of many and so flatters itself; its repeats with "
        "other seeds do not.",
        (panel,),
        wide=True,
    )
