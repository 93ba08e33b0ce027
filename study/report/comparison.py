"""Which findings hold in several studies: other data, other backbones, other machines?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.distributions import CategoricalDistribution

from search_spaces.space import Space
from study.analyses import across
from study.analyses.findings import Findings, find
from study.analyses.leaderboard import UNTRAINED
from study.errors import StudyError
from study.report import draw_matplotlib, folder, page, tables
from study.report.answer import Answer
from study.report.build import ReportPaths, facts, save_page
from study.report.chart import PALETTE, Axis, Chart, Dots, Line, Mark, Panel, Span
from study.report.page import Block, Section
from study.report.record import rows
from study.report.words import knob_axis, knob_label, listing, number
from study.table import TrialTable


def compare_reports(
    studies: Sequence[TrialTable],
    out: Path,
    *,
    seed: int = 0,
    formats: Sequence[str] = draw_matplotlib.FORMATS,
) -> ReportPaths:
    """Write index.html, report.json, figures/ and tables/ of a comparison of studies.

    Raises:
        StudyError: Fewer than two studies.
    """
    if len(studies) < 2:
        raise StudyError(f"a comparison needs at least two studies, got {len(studies)}")
    findings = [find(table, seed=seed) for table in studies]
    names = across.names(findings)
    common, agreement = across.common(findings), across.agreement(findings)
    told = _sections(findings, names, common, agreement)
    header = [
        (n, listing([v for _, v in facts(f.table)][:2]))
        for n, f in zip(names, findings, strict=True)
    ]
    said = _answer(len(studies), common, across.silent(findings))
    html = page.render(study=" / ".join(names), facts=header, answer=said, sections=told)
    frames = {"ranges": across.ranges(findings), "common": common, "agreement": agreement,
              "scores": _scores(findings, names)}  # fmt: skip
    content = {"format": 1, "studies": names, "headline": said.headline}
    content |= {k: rows(f) for k, f in frames.items()}
    charts = [b.chart for s in told for b in s.blocks if b.chart]
    known = tables.symbols(space for table in studies for space in table.spaces.values())
    with folder.replaced(out) as new:
        save_page(new, html, content)
        drawn = draw_matplotlib.save_all(charts, new / "figures", formats)
        saved = [
            p
            for key, frame in frames.items()
            for p in tables.save(
                frame, new / "tables", key, caption=f"Studies compared: {key}", symbols=known
            )
        ]
    return ReportPaths.of(out, drawn, saved)


def _answer(total: int, common: pd.DataFrame, silent: pd.DataFrame) -> Answer:
    held = common[common["verdict"] == "holds in all"]
    lost = common[common["verdict"] == "no common range"]
    open_ = common[common["verdict"] == "cannot tell"]
    words = f"{len(held)} of {len(common)} stable ranges hold in "
    if (common["studies"] == total).all():
        words += f"all {total} studies."
    else:
        counts = [str(n) for n in sorted(set(common["studies"]))]
        words += f"all studies that tell them ({' or '.join(counts)} of {total})."
    points = []
    if len(held):
        ranges = [_range(r, total) for r in held.to_dict("records")]
        points.append(("Holds in all", listing(ranges) + "."))
    if len(lost):
        points.append(("Does not carry over", listing(_names(lost)) + "."))
    if len(open_):
        points.append(("Cannot tell", f"{listing(_names(open_))}: undetermined in some study."))
    if len(silent):
        reasons = [f"{r['loss']} in {r['study']}: {r['reason']}" for r in silent.to_dict("records")]
        points.append(("Not counted", " ".join(reasons)))
    if common.empty:
        words = "The studies have no loss and knob in common whose range is known."
    return Answer(words, tuple(points))


def _names(frame: pd.DataFrame) -> list[str]:
    return [f"{r['loss']} {r['knob']}" for r in frame.to_dict("records")]


def _range(row: dict[Hashable, Any], total: int) -> str:
    values = row["values"] or f"{number(row['low'])}–{number(row['high'])}"
    of = "" if row["studies"] == total else f" ({row['studies']} of {total} studies)"
    return f"{row['loss']} {row['knob']} {values}{of}"


def _sections(
    findings: Sequence[Findings],
    names: Sequence[str],
    common: pd.DataFrame,
    agreement: pd.DataFrame,
) -> list[Section]:
    shown = common.assign(
        low=[number(v) for v in common["low"]], high=[number(v) for v in common["high"]]
    )
    blocks = [Block(table=shown)] if len(common) else []
    losses = dict.fromkeys(common["loss"])
    space_of = {k: f.table.spaces[k] for f in findings for k in f.table.spaces}
    rows_ = across.ranges(findings)
    blocks += [
        Block(chart=_chart(rows_[rows_["loss"] == loss], common, space_of[loss], names))
        for loss in losses
    ]
    lead = (
        "Values within the tolerance of the best with 95 %, in each study and in all that tell the "
        "range."
    )
    scores = _scores(findings, names)
    return [
        Section("ranges", "Stable ranges in all studies", blocks, lead),
        Section("scores", "Best validation scores", [Block(table=scores)]),
        Section(
            "agreement",
            "Do the studies rank alike?",
            [Block(table=agreement)],
            "Kendall's tau of the losses' best scores, and of each loss's knobs by importance: 1 "
            "is the same order, -1 the reverse.",
        ),
    ]


def _scores(findings: Sequence[Findings], names: Sequence[str]) -> pd.DataFrame:
    columns = {}
    for name, found in zip(names, findings, strict=True):
        board = found.leaderboard
        columns[name] = board.set_index("loss")["best"].astype(float)
    frame = pd.DataFrame(columns)
    order = sorted(frame.index, key=lambda n: (n == UNTRAINED, str(n)))
    return frame.loc[order].rename_axis("loss").reset_index()


def _chart(ranges: pd.DataFrame, common: pd.DataFrame, space: Space, names: Sequence[str]) -> Chart:
    """One line per study and knob, the common range shaded."""
    loss = str(ranges["loss"].iloc[0])
    ticks = tuple((float(len(names) - 1 - i), n) for i, n in enumerate(names))
    panels = []
    for knob, rows_ in ranges.groupby("knob", sort=False):
        choice = isinstance(space.distributions.get(str(knob)), CategoricalDistribution)
        if choice or rows_["low"].isna().all():
            continue
        marks: list[Mark] = []
        both = common[(common["loss"] == loss) & (common["knob"] == knob)]
        if len(both) and both["low"].notna().iloc[0]:
            low, high = (float(both[k].iloc[0]) for k in ("low", "high"))
            marks.append(Span(low, high, "in all"))
        for row in rows_.to_dict("records"):
            i = list(names).index(str(row["study"]))
            y, color = float(len(names) - 1 - i), PALETTE[i % len(PALETTE)]
            if row["low"] is not None and row["low"] == row["low"]:
                marks.append(Line([float(row["low"]), float(row["high"])], [y, y], "", color))
                marks.append(Dots([float(row["best"])], [y], "", color, size=7, opacity=1.0))
        y_axis = Axis("", ticks=ticks, limits=(-0.6, len(names) - 0.4))
        panels.append(
            Panel(knob_label(space, str(knob)), knob_axis(space, str(knob)), y_axis, tuple(marks))
        )
    caption = "Bars: stable range in each study; dots: best value; shaded: stable in all of these."
    return Chart(f"ranges-{loss}", loss, caption, tuple(panels))
