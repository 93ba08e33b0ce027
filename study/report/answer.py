"""What does the study say, in words, before any plot?"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from study.analyses.findings import Findings, LossFindings
from study.analyses.leaderboard import UNTRAINED
from study.analyses.surrogate import Refusal
from study.report.words import knob_label, listing, metric_label, number, score


@dataclass(frozen=True)
class Answer:
    """The first screen: a headline and a few short paragraphs, each with its title."""

    headline: str
    points: tuple[tuple[str, str], ...]


def answer(findings: Findings) -> Answer:
    """Best loss, how sure, which knobs to set and which to leave."""
    board = findings.leaderboard
    ranked = board[(board["loss"] != UNTRAINED) & board["best"].notna()]
    if ranked.empty:
        return Answer("No loss has a score yet.", (("So far", _counts(findings)),))
    best = str(ranked["loss"].iloc[0])
    points = [("How sure", _sure(findings, ranked))]
    found = findings.losses[best]
    points += _knobs(findings, found, best)
    points.append(("Ran", _counts(findings)))
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    top = float(ranked["best"].iloc[0])
    return Answer(f"Use {best}: {objective} {score(top)} on validation classes.", tuple(points))


def _counts(findings: Findings) -> str:
    trials = findings.table.trials
    states = trials["state"].value_counts()
    parts = [
        f"{int(states[s])} {s}"
        for s in ("finished", "stopped", "diverged", "failed")
        if s in states
    ]
    text = f"{len(trials)} trials ({', '.join(parts)})" if parts else f"{len(trials)} trials"
    running = int(states.get("running", 0))
    if running:
        text += f"; {running} still running, so this page is not final"
    return text + "."


def _sure(findings: Findings, ranked: pd.DataFrame) -> str:
    if len(ranked) == 1:
        return "Only one loss has scores: there is nothing to compare it with."
    first, second = ranked.iloc[0], ranked.iloc[1]
    gap = float(first["best"] - second["best"])
    tolerance = findings.losses[str(first["loss"])].tolerance.value
    words = f"{second['loss']} follows {gap:.3f} behind"
    if tolerance != tolerance:
        return f"{words}; no seed was repeated, so nobody knows whether that is more than luck."
    if gap < 2 * tolerance:
        return f"{words}, which is less than two seed sigmas ({tolerance:.3f} each): a tie."
    return f"{words}, {gap / tolerance:.0f} times the noise between seeds ({tolerance:.3f})."


def _knobs(findings: Findings, found: LossFindings, loss: str) -> list[tuple[str, str]]:
    space = findings.table.spaces[loss]
    if isinstance(found.stable, Refusal):
        return [("Knobs", f"Cannot tell yet. {found.stable.reason}")]
    set_, leave, open_ = [], [], []
    for row in found.stable.to_dict("records"):
        label = knob_label(space, str(row["knob"]))
        wide = row["status"] == "stable" and row["share"] >= 0.7
        if wide:
            leave.append(label)
        elif row["status"] == "stable" and row["low"] is not None and row["low"] == row["low"]:
            set_.append(f"{label} to {number(row['low'])}–{number(row['high'])}")
        elif row["status"] == "stable":
            set_.append(f"{label} to {row['values']}")
        else:
            open_.append(label)
    out = []
    if set_:
        out.append(("Set", listing(set_) + "."))
    if leave:
        out.append(("Leave", f"{listing(leave)}: safe over most of the range."))
    if open_:
        out.append(("Cannot tell", f"{listing(open_)}: the trials leave the safe range open."))
    return out
