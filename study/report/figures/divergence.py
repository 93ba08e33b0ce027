"""Where training fails: share of diverged trials along each knob, and over the worst pair."""

from __future__ import annotations

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.scale import from_unit
from study.analyses.divergence import riskiest_pair
from study.analyses.findings import Findings
from study.analyses.pairs import near_trials
from study.analyses.samples import Array, searching, snap, unit_levels
from study.analyses.surrogate import Surrogate
from study.report.chart import ACCENT, BAD, QUIET, Axis, Chart, Dots, Heat, Line, Mark, Panel
from study.report.words import knob_axis, knob_label, places
from study.table import KNOB


def chart(findings: Findings, loss: str) -> Chart | None:
    """None when nothing diverged or collapsed."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    if found.divergence.empty:
        return None
    panels = []
    pair = _pair_panel(findings, loss)
    if pair is not None:
        panels.append(pair)
    for knob in findings.table.knobs(loss):
        rows = found.divergence[found.divergence["knob"] == knob]
        distribution = space.distributions[knob]
        if isinstance(distribution, CategoricalDistribution):
            x = places(distribution, rows["low"])
        elif getattr(distribution, "log", False):
            x = [float(np.sqrt(a * b)) for a, b in zip(rows["low"], rows["high"], strict=True)]
        else:
            x = [(float(a) + float(b)) / 2 for a, b in zip(rows["low"], rows["high"], strict=True)]
        texts = [
            f"{k} of {n} diverged" for k, n in zip(rows["diverged"], rows["trials"], strict=True)
        ]
        marks: list[Mark] = []
        if found.divergence["diverged"].any():
            marks.append(Dots(x, list(rows["rate"]), "diverged", BAD, texts=texts, size=6))
        if len(found.collapsed):
            share = (rows["collapsed"] / rows["trials"]).clip(upper=1.0)
            marks.append(Dots(x, list(share), "collapsed", ACCENT, "open", size=6, opacity=1.0))
        if rows["chance"].notna().any():
            marks.append(Line(x, list(rows["chance"]), "model", QUIET))
        y = Axis("share of trials", percent=True, limits=(-0.03, 1.03))
        panels.append(Panel(knob_label(space, knob), knob_axis(space, knob), y, tuple(marks)))
    return Chart(
        f"divergence-{loss}",
        f"Where training fails: {loss}",
        "Share of trials that ended in NaN or infinity (diverged), or trained to their end and "
        "fell below the untrained backbone (collapsed), in equal parts of each range; the map "
        "shows the two knobs that tell diverged trials apart best.",
        tuple(panels),
    )


def _pair_panel(findings: Findings, loss: str) -> Panel | None:
    model, space = findings.losses[loss].surrogate, findings.table.spaces[loss]
    if not isinstance(model, Surrogate) or model.risk is None:
        return None
    pair = riskiest_pair(model.samples, model.risk)
    if pair is None:
        return None
    samples = model.samples
    i, j = (samples.knobs.index(k) for k in pair)
    across, up = (_grid(samples.distributions[k]) for k in (i, j))
    first, second = np.meshgrid(across, up, indexing="xy")
    cells = np.stack([first.ravel(), second.ravel()], axis=1)
    units = np.repeat(np.median(samples.units, axis=0)[None], len(cells), axis=0)
    units[:, i], units[:, j] = cells[:, 0], cells[:, 1]
    chance = model.risk(snap(samples.distributions, units)).mean(axis=0)
    known = near_trials(samples, (i, j), cells)
    z = np.where(known, chance, np.nan).reshape(first.shape)
    a, b = samples.distributions[i], samples.distributions[j]
    xs = places(a, [from_unit(a, u) for u in across])
    ys = places(b, [from_unit(b, u) for u in up])
    trials = searching(findings.table, loss)
    bad = trials[trials["state"] == "diverged"]
    rows = [[None if np.isnan(v) else float(v) for v in row] for row in z]
    dots = Dots(
        places(a, bad[KNOB + pair[0]]),
        places(b, bad[KNOB + pair[1]]),
        "diverged",
        BAD,
        "cross",
        size=5,
        opacity=1.0,
        texts=list(bad["trial"]),
    )
    title = f"{knob_label(space, pair[0])} × {knob_label(space, pair[1])}"
    marks: list[Mark] = [Heat(xs, ys, rows, "chance to diverge"), dots]
    fallen = findings.losses[loss].collapsed
    if len(fallen):
        x, y = places(a, fallen[KNOB + pair[0]]), places(b, fallen[KNOB + pair[1]])
        names = list(fallen["trial"])
        marks.append(Dots(x, y, "collapsed", ACCENT, "open", names, size=5, opacity=1.0))
    return Panel(title, knob_axis(space, pair[0]), knob_axis(space, pair[1]), tuple(marks))


def _grid(distribution: BaseDistribution) -> Array:
    """Cells of the map: the values of a choice or of few steps, else fifteen."""
    levels = unit_levels(distribution, most=15)
    return np.linspace(0.02, 0.98, 15) if levels is None else levels
