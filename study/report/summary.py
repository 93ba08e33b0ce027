"""What does the study say, in words, before any plot?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.analyses.comparison import one_function
from study.analyses.findings import Findings, LossFindings
from study.analyses.leaderboard import UNTRAINED
from study.analyses.response import SURE
from study.analyses.surrogate import Refusal
from study.report.words import chance, knob_label, listing, metric_label, number, score


@dataclass(frozen=True)
class Answer:
    """The first screen: a headline and a few short paragraphs, each with its title."""

    headline: str
    points: tuple[tuple[str, str], ...]


def answer(findings: Findings) -> Answer:
    """Best loss, how sure, which knobs to set and which to leave."""
    ranked = _ranked(findings)
    if ranked.empty:
        return Answer("No loss has a score yet.", (("So far", _counts(findings)),))
    best, headline = _headline(findings, ranked)
    points = [("How sure", _sure(findings, ranked))]
    points += _knobs(findings, findings.losses[best], best)
    said = _claims(findings)
    if said:
        points.append(("Papers", said))
    points.append(("Ran", _counts(findings)))
    return Answer(headline, tuple(points))


def leader(findings: Findings) -> str:
    """The loss that the headline names; empty while none has a score.

    By confirmed test scores once every loss has them, as `best_draws` says.
    """
    ranked = _ranked(findings)
    if ranked.empty:
        return ""
    rows = findings.best if _is_race(findings, ranked) else ranked
    return str(rows["loss"].iloc[0])


def _ranked(findings: Findings) -> pd.DataFrame:
    board = findings.leaderboard
    return board[(board["loss"] != UNTRAINED) & board["best"].notna()]


def _is_race(findings: Findings, ranked: pd.DataFrame) -> bool:
    """Whether enough seeds were repeated to say how likely each loss is the best."""
    return len(findings.best) >= min(2, len(ranked))


def _headline(findings: Findings, ranked: pd.DataFrame) -> tuple[str, str]:
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    best = leader(findings)
    if _is_race(findings, ranked):
        top = findings.best.iloc[0]
        rival = _rival(findings)
        words = f"{best} leads, but {rival} may be as good" if rival else f"Use {best}"
        band = f"90 %: {score(top['low'])} to {score(top['high'])}"
        where = "test classes" if findings.best_split == "test" else "validation classes"
        return best, f"{words}: {objective} {score(float(top['score']))} ({band}) on {where}."
    words = f"Use {best}"
    if len(ranked) > 1:
        words = f"{best} leads, but {ranked['loss'].iloc[1]} may be as good"
    value = float(ranked["best"].iloc[0])
    return best, f"{words}: {objective} {score(value)} on validation classes."


def _rival(findings: Findings) -> str:
    """The likeliest other loss that the leader is not shown to beat; empty if it beats them all.

    Where both are confirmed the paired tests must agree: the page has one answer, not two.
    """
    names = [str(name) for name in findings.best["loss"]]
    if len(names) > 1 and float(findings.best["probability"].iloc[0]) < SURE:
        return names[1]
    for other in names[1:]:
        lead = _lead(findings, names[0], other)
        if lead is not None and not lead.sure:
            return other
    return ""


@dataclass(frozen=True)
class _Lead:
    """How far one loss is ahead of another on test classes (95 %), and whether that is sure."""

    low: float
    high: float
    sure: bool


def _lead(findings: Findings, loss: str, other: str) -> _Lead | None:
    """From the paired tests; None where the two have none."""
    if findings.best_split != "test":
        return None
    for row in findings.paired.to_dict("records"):
        if (row["loss"], row["other"]) == (loss, other):
            return _Lead(row["low"], row["high"], row["verdict"] == "better")
        if (row["loss"], row["other"]) == (other, loss):
            return _Lead(-row["high"], -row["low"], row["verdict"] == "worse")
    return None


def _sure(findings: Findings, ranked: pd.DataFrame) -> str:
    if len(ranked) == 1:
        return "Only one loss has scores: there is nothing to compare it with."
    rows = findings.best
    if len(rows) < 2:
        gap = float(ranked["best"].iloc[0] - ranked["best"].iloc[1])
        seeds = "no seed"
        if len(rows):
            silent = [n for n in ranked["loss"] if n not in set(rows["loss"])]
            seeds = f"no seed of {listing(silent)}"
        return (
            f"Not sure at all: {ranked['loss'].iloc[1]} follows {gap:.3f} behind, and {seeds} was "
            "repeated to tell that from luck."
        )
    first, second = rows.iloc[0], rows.iloc[1]
    gap = float(first["score"] - second["score"])
    lead = _lead(findings, str(first["loss"]), str(second["loss"]))
    band = f" (95 %: {lead.low:.3f} to {lead.high:.3f})" if lead else ""
    words = (
        f"{chance(float(first['probability']))} that {first['loss']} is the best of "
        f"{len(rows)}; {second['loss']} is {gap:.3f} behind{band}."
    )
    if lead and not lead.sure:
        words += " A test that allows for the number of comparisons cannot tell the two apart."
    groups = one_function(findings.table)
    placed = set(rows["loss"]).union(*(g for g in groups if set(g) & set(rows["loss"])))
    silent = [n for n in ranked["loss"] if n not in placed]
    if silent:
        words += f" {listing(silent)}: no repeated seed, so not in the race."
    if findings.best_split != "test":
        words += " Validation classes only: confirm on test classes before you publish."
    floor = findings.noise_floor
    if len(floor):
        worst = float(np.nanmax(floor[["validation", "test"]].to_numpy(dtype=float)))
        names = "; ".join(f"{listing(g)} are one function and share a place" for g in groups)
        words += f" {names}: alone they came out {worst:.3f} apart."
    return words


def _counts(findings: Findings) -> str:
    trials = findings.table.trials
    states = trials["state"].value_counts()
    kinds = ("finished", "stopped", "diverged", "failed")
    parts = [f"{int(states[s])} {s}" for s in kinds if s in states]
    text = f"{len(trials)} trials ({', '.join(parts)})" if parts else f"{len(trials)} trials"
    running = int(states.get("running", 0))
    if running:
        text += f"; {running} still running, so this page is not final"
    return text + "."


def _claims(findings: Findings) -> str:
    counts = {str(k): int(v) for k, v in findings.claims["verdict"].value_counts().items()}
    parts = [f"{counts[v]} {v}" for v in ("supported", "contradicted") if v in counts]
    if "cannot tell" in counts:
        parts.append(f"{counts['cannot tell']} these trials cannot decide")
    return f"Of {len(findings.claims)} claims: {listing(parts)}." if parts else ""


def _knobs(findings: Findings, found: LossFindings, loss: str) -> list[tuple[str, str]]:
    space = findings.table.spaces[loss]
    if isinstance(found.stable, Refusal):
        return [("Knobs", f"Cannot tell yet. {found.stable.reason}")]
    stay = _may_stay(found)
    set_, leave, open_ = [], [], []
    for row in found.stable.to_dict("records"):
        knob = str(row["knob"])
        label = knob_label(space, knob)
        known = row["status"] == "stable"
        if known and row["share"] >= 0.7:
            leave.append(label)
        elif knob in stay:
            leave.append(f"{label} at the published {number(stay[knob])}")
        elif known and not row["values"]:
            low, high = number(row["low"]), number(row["high"])
            words = f"{label} to {low}" if low == high else f"{label} to {low}–{high}"
            outer = f"{number(row['outer_low'])}–{number(row['outer_high'])}"
            set_.append(words if row["share"] > 0.15 else f"{words} ({outer} is not excluded)")
        elif known:
            set_.append(f"{label} to {str(row['values']).replace(', ', ' or ')}")
        else:
            open_.append(f"{label} (best so far {number(row['best'])})")
    out = []
    if set_:
        out.append(("Set", listing(set_) + "."))
    if leave:
        out.append(("Leave", listing(leave) + "."))
    if open_:
        out.append(("Cannot tell", f"{listing(open_)}: the trials leave the safe range open."))
    return out


def _may_stay(found: LossFindings) -> dict[str, object]:
    """Knobs that may stay at their published value, with that value."""
    if isinstance(found.tuned, Refusal):
        return {}
    values = dict(
        zip(found.tuned.tunability["knob"], found.tuned.tunability["published"], strict=True)
    )
    keep = found.tuned.leave
    return {str(k): values[k] for k in keep.loc[keep["verdict"] == "may stay", "knob"]}
