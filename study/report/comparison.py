"""Comparison report: findings that hold across studies with other data, backbones or machines."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.distributions import CategoricalDistribution

from search_spaces.space import SearchSpace
from study.analyses import cross_study
from study.analyses.findings import StudyFindings, analyse_study
from study.analyses.leaderboard import UNTRAINED_BACKBONE_LABEL
from study.errors import StudyError
from study.report import html_page, table_export
from study.report.charts import matplotlib_renderer
from study.report.charts.spec import (
    PALETTE,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    LineMark,
    ScatterMark,
    SpanMark,
)
from study.report.formatting import (
    PAGE_COLUMN_NAMES,
    format_value,
    join_words,
    param_axis,
    param_label,
)
from study.report.html_page import PageBlock, PageSection
from study.report.json_export import frame_to_json
from study.report.summary import ReportSummary
from study.report.writer import ReportPaths, protocol_facts, write_page
from study.trials.table import TrialTable
from study.utils import atomic_folder


def compare_reports(
    studies: Sequence[TrialTable],
    out: Path,
    *,
    seed: int = 0,
    formats: Sequence[str] = matplotlib_renderer.FIGURE_FORMATS,
) -> ReportPaths:
    """Write index.html, report.json, figures/ and tables/ of a comparison of studies.

    Args:
        studies: Trial tables of the studies; two or more.
        out: Folder of the report; an earlier report in it is replaced.
        seed: Seed of the analyses.
        formats: File formats of the figures.

    Raises:
        StudyError: There are fewer than two studies.
    """
    if len(studies) < 2:
        raise StudyError(f"a comparison needs at least two studies, got {len(studies)}")
    findings = [analyse_study(table, seed=seed) for table in studies]
    names = cross_study.make_distinct_names(findings)
    common = cross_study.find_common_ranges(findings)
    frames = {
        "ranges": cross_study.collect_stable_ranges(findings),
        "common": common,
        "agreement": cross_study.analyse_rank_agreement(findings),
        "scores": _best_score_table(findings, names),
    }
    sections = _comparison_sections(findings, names, frames)
    facts = [
        (n, join_words([v for _, v in protocol_facts(f.table)][:2]))
        for n, f in zip(names, findings, strict=True)
    ]
    refusals = cross_study.collect_range_refusals(findings)
    summary = _summarise_comparison(len(studies), common, refusals)
    html = html_page.render_page(
        study=" / ".join(names), facts=facts, summary=summary, sections=sections
    )
    content = {"format": 1, "studies": names, "headline": summary.headline}
    content |= {k: frame_to_json(f) for k, f in frames.items()}
    charts = [b.chart for s in sections for b in s.blocks if b.chart]
    symbols = table_export.collect_latex_symbols(
        space for table in studies for space in table.spaces.values()
    )
    with atomic_folder.replacing_folder(out) as folder:
        write_page(folder, html, content)
        figures = matplotlib_renderer.save_charts(charts, folder / "figures", formats)
        tables = [
            path
            for key, frame in frames.items()
            for path in table_export.save_table(
                frame, folder / "tables", key, caption=f"Studies compared: {key}", symbols=symbols
            )
        ]
    return ReportPaths.from_folder(out, figures, tables)


def _summarise_comparison(
    n_studies: int, common: pd.DataFrame, refusals: pd.DataFrame
) -> ReportSummary:
    holding = common[common["verdict"] == "holds in all"]
    disjoint = common[common["verdict"] == "no common range"]
    undecided = common[common["verdict"] == "cannot tell"]
    headline = f"{len(holding)} of {len(common)} stable ranges hold in "
    if (common["studies"] == n_studies).all():
        headline += f"all {n_studies} studies."
    else:
        counts = [str(n) for n in sorted(set(common["studies"]))]
        headline += f"all studies that determine them ({' or '.join(counts)} of {n_studies})."
    points = []
    if len(holding):
        ranges = [_format_range(r, n_studies) for r in holding.to_dict("records")]
        points.append(("Holds in all", join_words(ranges) + "."))
    if len(disjoint):
        points.append(("Does not carry over", join_words(_loss_param_labels(disjoint)) + "."))
    if len(undecided):
        labels = join_words(_loss_param_labels(undecided))
        points.append(("Cannot tell", f"{labels}: undetermined in at least one study."))
    if len(refusals):
        rows = refusals.to_dict("records")
        reasons = [f"{r['loss']} in {r['study']}: {r['reason']}" for r in rows]
        points.append(("Not counted", " ".join(reasons)))
    if common.empty:
        headline = "The studies have no loss and hyperparameter with a known range in common."
    return ReportSummary(headline, tuple(points))


def _loss_param_labels(frame: pd.DataFrame) -> list[str]:
    return [f"{r['loss']} {r['knob']}" for r in frame.to_dict("records")]


def _format_range(row: dict[Hashable, Any], n_studies: int) -> str:
    values = row["values"] or f"{format_value(row['low'])}–{format_value(row['high'])}"
    count = "" if row["studies"] == n_studies else f" ({row['studies']} of {n_studies} studies)"
    return f"{row['loss']} {row['knob']} {values}{count}"


def _comparison_sections(
    findings: Sequence[StudyFindings], names: Sequence[str], frames: Mapping[str, pd.DataFrame]
) -> list[PageSection]:
    common, ranges = frames["common"], frames["ranges"]
    page_table = common.assign(
        low=[format_value(v) for v in common["low"]], high=[format_value(v) for v in common["high"]]
    ).rename(columns=PAGE_COLUMN_NAMES)
    blocks = [PageBlock(table=page_table)] if len(common) else []
    spaces = {k: f.table.spaces[k] for f in findings for k in f.table.spaces}
    blocks += [
        PageBlock(
            chart=_build_range_chart(ranges[ranges["loss"] == loss], common, spaces[loss], names)
        )
        for loss in dict.fromkeys(common["loss"])
    ]
    lead = (
        "Values whose score is within the tolerance of the best with 95 % probability, in each "
        "study and in all studies that determine the range."
    )
    return [
        PageSection("ranges", "Stable ranges in all studies", blocks, lead),
        PageSection("scores", "Best validation scores", [PageBlock(table=frames["scores"])]),
        PageSection(
            "agreement",
            "Agreement of the rankings",
            [PageBlock(table=frames["agreement"])],
            "Kendall's tau between two studies: of the losses ranked by best score, and of each "
            "loss's hyperparameters ranked by importance. 1 is the same order, -1 the reverse.",
        ),
    ]


def _best_score_table(findings: Sequence[StudyFindings], names: Sequence[str]) -> pd.DataFrame:
    columns = {}
    for name, found in zip(names, findings, strict=True):
        columns[name] = found.leaderboard.set_index("loss")["best"].astype(float)
    frame = pd.DataFrame(columns)
    order = sorted(frame.index, key=lambda n: (n == UNTRAINED_BACKBONE_LABEL, str(n)))
    return frame.loc[order].rename_axis("loss").reset_index()


def _build_range_chart(
    ranges: pd.DataFrame, common: pd.DataFrame, space: SearchSpace, names: Sequence[str]
) -> Chart:
    """Build one panel per hyperparameter: a line per study, the common range shaded."""
    loss = str(ranges["loss"].iloc[0])
    ticks = tuple((float(len(names) - 1 - i), n) for i, n in enumerate(names))
    panels = []
    for param, group in ranges.groupby("knob", sort=False):
        is_choice = isinstance(space.distributions.get(str(param)), CategoricalDistribution)
        if is_choice or group["low"].isna().all():
            continue
        marks: list[ChartMark] = []
        shared = common[(common["loss"] == loss) & (common["knob"] == param)]
        if len(shared) and shared["low"].notna().iloc[0]:
            low, high = (float(shared[k].iloc[0]) for k in ("low", "high"))
            marks.append(SpanMark(low, high, "in all"))
        for row in group.to_dict("records"):
            i = list(names).index(str(row["study"]))
            y, color = float(len(names) - 1 - i), PALETTE[i % len(PALETTE)]
            if row["low"] is not None and row["low"] == row["low"]:
                marks.append(LineMark([float(row["low"]), float(row["high"])], [y, y], "", color))
                marks.append(ScatterMark([float(row["best"])], [y], "", color, size=7, opacity=1.0))
        y_axis = ChartAxis("", ticks=ticks, limits=(-0.6, len(names) - 0.4))
        panels.append(
            ChartPanel(
                param_label(space, str(param)), param_axis(space, str(param)), y_axis, tuple(marks)
            )
        )
    caption = "Lines: stable range in each study; dots: best value; shaded: stable in all of them."
    return Chart(f"ranges-{loss}", loss, caption, tuple(panels))
