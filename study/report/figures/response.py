"""The score along each knob: trials, model, published value, claimed and stable range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution

from search_spaces.claims import GoodValue, StableRange
from search_spaces.space import Space
from study.analyses.findings import Findings
from study.analyses.samples import published_values, searching
from study.analyses.surrogate import Refusal
from study.report.chart import (
    ACCENT,
    BAD,
    GOOD,
    PALETTE,
    QUIET,
    Axis,
    Band,
    Chart,
    Dots,
    Line,
    Mark,
    Panel,
    Rule,
    Span,
    Symbol,
)
from study.report.words import knob_axis, knob_label, metric_label, number, places
from study.table import KNOB

_BANDS = {"whole": "90 % band, whole space", "good": "90 % band, others good"}
_STATES: tuple[tuple[str, str, str, Symbol], ...] = (
    ("finished", "full trial", QUIET, "circle"),
    ("stopped", "stopped early", QUIET, "open"),
    ("running", "still running", PALETTE[7], "open"),
    ("below", "below the axis", QUIET, "triangle"),
    ("diverged", "diverged", BAD, "cross"),
)


def chart(findings: Findings, loss: str) -> Chart:
    """One panel per searched knob."""
    table = findings.table
    panels = tuple(_panel(findings, loss, knob) for knob in table.knobs(loss))
    return Chart(
        f"response-{loss}",
        f"How the score responds: {loss}",
        "Lines: the model's score, averaged over settings whose other knobs are good (solid) and "
        "over the whole space (dashed), with 90 % bands, drawn only where trials lie. The worst "
        "trials sit at the foot of a panel.",
        panels,
    )


def _panel(findings: Findings, loss: str, knob: str) -> Panel:
    table, found = findings.table, findings.losses[loss]
    space = table.spaces[loss]
    trials = searching(table, loss)
    objective = metric_label(str(table.protocol.get("objective", "score")))
    marks: list[Mark] = [*_claims(space, knob), *_stable(findings, loss, knob)]
    limits = _limits(trials, found.curves, knob)
    foot = limits[0] + 0.025 * (limits[1] - limits[0]) if limits else 0.0
    dots = _trials(trials, space, knob, foot=foot)
    if isinstance(found.curves, pd.DataFrame):
        marks += _curves(found.curves, space, knob)
    marks += dots
    published = published_values(table, loss)
    if published is not None:
        at = places(space.distributions[knob], [published[knob]])[0]
        marks.append(Rule(at, "published", color=BAD))
    axis = knob_axis(space, knob)
    note = "" if dots else "No trial of this loss has run yet."
    return Panel(
        knob_label(space, knob), axis, Axis(objective, limits=limits), tuple(marks), note=note
    )


def _limits(
    trials: pd.DataFrame, curves: pd.DataFrame | Refusal, knob: str
) -> tuple[float, float] | None:
    """The part of the scores worth looking at: the good curve and three quarters of the trials."""
    scores = trials["score"].to_numpy(dtype=float)
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        return None
    low, high = float(np.quantile(scores, 0.25)), float(scores.max())
    if isinstance(curves, pd.DataFrame):
        rows = curves[(curves["knob"] == knob) & curves["supported"]]
        if len(rows):
            low = min(low, float(rows["mean"].min()))
    low = max(low, float(scores.min()))
    pad = 0.06 * max(high - low, 1e-6)
    return low - pad, high + pad


def _trials(trials: pd.DataFrame, space: Space, knob: str, *, foot: float) -> list[Mark]:
    """Dots by state; trials below the axis sit at its foot as triangles, diverged as crosses."""
    distribution = space.distributions[knob]
    score = trials["score"].to_numpy(dtype=float)
    below = (score < foot) & np.isfinite(score)
    marks: list[Mark] = []
    for state, name, color, symbol in _STATES:
        if state == "below":
            mask = below
        elif state == "diverged":
            mask = (trials["state"] == state).to_numpy()
        else:
            mask = (trials["state"] == state).to_numpy() & np.isfinite(score) & ~below
        rows = trials[mask & trials[KNOB + knob].notna().to_numpy()]
        if rows.empty:
            continue
        y = rows["score"].fillna(foot).clip(lower=foot).to_numpy(dtype=float)
        x = _spread(places(distribution, rows[KNOB + knob]), distribution)
        texts = [
            f"{t}: {number(v)} → {'diverged' if s != s else f'{s:.4f}'} ({e} epochs)"
            for t, v, s, e in zip(
                rows["trial"], rows[KNOB + knob], rows["score"], rows["epochs"], strict=True
            )
        ]
        marks.append(Dots(x, list(y), name, color, symbol, texts, size=4, opacity=0.75))
    return marks


def _spread(x: Sequence[float], distribution: object) -> list[float]:
    """Choices side by side instead of on one line; the offset is a hash of the order."""
    if not isinstance(distribution, CategoricalDistribution):
        return list(x)
    return [v + 0.5 * ((i * 0.618034) % 1.0 - 0.5) for i, v in enumerate(x)]


def _curves(curves: pd.DataFrame, space: Space, knob: str) -> list[Mark]:
    distribution = space.distributions[knob]
    marks: list[Mark] = []
    for region, name, color, dash in (
        ("whole", "average, whole space", PALETTE[6], True),
        ("good", "average, others good", ACCENT, False),
    ):
        rows = curves[(curves["knob"] == knob) & (curves["region"] == region)]
        known = rows["supported"].to_numpy(dtype=bool)
        if not known.any():
            continue
        x = places(distribution, rows["value"])
        mean, low, high = (
            np.where(known, rows[c].to_numpy(dtype=float), np.nan) for c in ("mean", "low", "high")
        )
        if isinstance(distribution, CategoricalDistribution):
            half = (high - low) / 2
            marks.append(
                Dots(x, list(mean), name, color, "diamond", errors=list(half), size=7, opacity=1.0)
            )
            continue
        marks.append(Band(x, list(low), list(high), _BANDS[region], color))
        marks.append(Line(x, list(mean), name, color, dash=dash))
    return marks


def _stable(findings: Findings, loss: str, knob: str) -> list[Mark]:
    ranges = findings.losses[loss].stable
    if isinstance(ranges, Refusal):
        return []
    row = ranges[ranges["knob"] == knob].iloc[0]
    if row["status"] != "stable" or row["low"] is None or pd.isna(row["low"]):
        return []
    return [Span(float(row["low"]), float(row["high"]), "stable range", GOOD)]


def _claims(space: Space, knob: str) -> list[Mark]:
    """What the paper says about the knob, where it is a range or a value."""
    distribution = space.distributions[knob]
    if isinstance(distribution, CategoricalDistribution):
        return []
    bounds = (float(distribution.low), float(distribution.high))  # type: ignore[attr-defined]
    marks: list[Mark] = []
    for claim in space.claims:
        test = claim.test
        if isinstance(test, StableRange) and test.knob == knob:
            low = bounds[0] if test.low is None else max(test.low, bounds[0])
            high = bounds[1] if test.high is None else min(test.high, bounds[1])
            if low < high:
                marks.append(Span(low, high, "claimed stable", PALETTE[1]))
        elif isinstance(test, GoodValue) and test.knob == knob and not isinstance(test.value, str):
            marks.append(Rule(float(test.value), "claimed good", color=PALETTE[1]))
    return marks
