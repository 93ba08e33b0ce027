"""Summary of a report: the headline and the paragraphs of the first screen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.analyses.findings import LossFindings, StudyFindings
from study.analyses.leaderboard import UNTRAINED_BACKBONE_LABEL
from study.analyses.loss_comparison import find_equivalent_groups
from study.analyses.response_curves import CONFIDENCE_LEVEL
from study.analyses.surrogate.surrogate import Refusal
from study.report.formatting import (
    format_probability,
    format_rounded_score,
    format_value,
    join_words,
    metric_label,
    param_label,
)

LEAVE_SHARE = 0.7
"""A hyperparameter that is safe over this share of its range needs no setting."""
NARROW_SHARE = 0.15
"""For a safe range of at most this share, the summary adds the values that are not excluded."""


@dataclass(frozen=True)
class ReportSummary:
    """First screen of a report: a headline and short paragraphs, each with a title."""

    headline: str
    points: tuple[tuple[str, str], ...]


def summarise_findings(findings: StudyFindings) -> ReportSummary:
    """Name the best loss, how certain that is, and which hyperparameters to set or to leave."""
    ranked = _ranked_losses(findings)
    if ranked.empty:
        return ReportSummary(
            "No loss has a score yet.", (("So far", _describe_trial_counts(findings)),)
        )
    best, headline = _compose_headline(findings, ranked)
    points = [("How sure", _describe_confidence(findings, ranked))]
    points += _advise_on_params(findings, findings.losses[best], best)
    claims = _describe_claims(findings)
    if claims:
        points.append(("Papers", claims))
    points.append(("Ran", _describe_trial_counts(findings)))
    return ReportSummary(headline, tuple(points))


def leading_loss(findings: StudyFindings) -> str:
    """Return the loss that the headline names; an empty string while none has a score.

    Confirmed test scores decide once every loss has them (see `draw_tuned_scores` in
    `study.analyses.loss_comparison`).
    """
    ranked = _ranked_losses(findings)
    if ranked.empty:
        return ""
    rows = findings.best_probabilities if _has_win_probabilities(findings, ranked) else ranked
    return str(rows["loss"].iloc[0])


def _ranked_losses(findings: StudyFindings) -> pd.DataFrame:
    frame = findings.leaderboard
    return frame[(frame["loss"] != UNTRAINED_BACKBONE_LABEL) & frame["best"].notna()]


def _has_win_probabilities(findings: StudyFindings, ranked: pd.DataFrame) -> bool:
    """Whether enough seeds were repeated to estimate how likely each loss is the best."""
    return len(findings.best_probabilities) >= min(2, len(ranked))


def _compose_headline(findings: StudyFindings, ranked: pd.DataFrame) -> tuple[str, str]:
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    best = leading_loss(findings)
    if _has_win_probabilities(findings, ranked):
        top = findings.best_probabilities.iloc[0]
        rival = _unbeaten_rival(findings)
        advice = f"{best} leads, but {rival} may be as good" if rival else f"Use {best}"
        score = format_rounded_score(float(top["score"]))
        band = f"90 %: {format_rounded_score(top['low'])} to {format_rounded_score(top['high'])}"
        split = "test classes" if findings.best_split == "test" else "validation classes"
        return best, f"{advice}: {objective} {score} ({band}) on {split}."
    advice = f"Use {best}"
    if len(ranked) > 1:
        advice = f"{best} leads, but {ranked['loss'].iloc[1]} may be as good"
    score = format_rounded_score(float(ranked["best"].iloc[0]))
    return best, f"{advice}: {objective} {score} on validation classes."


def _unbeaten_rival(findings: StudyFindings) -> str:
    """Return the most likely other loss that the leader is not shown to beat; empty if none.

    If both losses are confirmed, the paired test must agree as well, so that headline and table
    do not contradict each other.
    """
    names = [str(name) for name in findings.best_probabilities["loss"]]
    top_probability = float(findings.best_probabilities["probability"].iloc[0])
    if len(names) > 1 and top_probability < CONFIDENCE_LEVEL:
        return names[1]
    for other in names[1:]:
        lead = _find_paired_lead(findings, names[0], other)
        if lead is not None and not lead.is_significant:
            return other
    return ""


@dataclass(frozen=True)
class _PairedLead:
    """95 % interval of one loss's lead over another on test classes, and its significance."""

    low: float
    high: float
    is_significant: bool


def _find_paired_lead(findings: StudyFindings, loss: str, other: str) -> _PairedLead | None:
    """Return the lead from the paired tests; None if the two losses were not tested."""
    if findings.best_split != "test":
        return None
    for row in findings.pairwise_tests.to_dict("records"):
        if (row["loss"], row["other"]) == (loss, other):
            return _PairedLead(row["low"], row["high"], row["verdict"] == "better")
        if (row["loss"], row["other"]) == (other, loss):
            return _PairedLead(-row["high"], -row["low"], row["verdict"] == "worse")
    return None


def _describe_confidence(findings: StudyFindings, ranked: pd.DataFrame) -> str:
    if len(ranked) == 1:
        return "Only one loss has scores, so there is no comparison."
    rows = findings.best_probabilities
    if len(rows) < 2:
        gap = float(ranked["best"].iloc[0] - ranked["best"].iloc[1])
        seeds = "no seed"
        if len(rows):
            unrepeated = [n for n in ranked["loss"] if n not in set(rows["loss"])]
            seeds = f"no seed of {join_words(unrepeated)}"
        return (
            f"Unknown: {ranked['loss'].iloc[1]} is {gap:.3f} behind, and {seeds} was repeated, so "
            "this may be chance."
        )
    first, second = rows.iloc[0], rows.iloc[1]
    gap = float(first["score"] - second["score"])
    lead = _find_paired_lead(findings, str(first["loss"]), str(second["loss"]))
    band = f" (95 %: {lead.low:.3f} to {lead.high:.3f})" if lead else ""
    sentences = [
        f"{format_probability(float(first['probability']))} that {first['loss']} is the best of "
        f"{len(rows)}; {second['loss']} is {gap:.3f} behind{band}."
    ]
    if lead and not lead.is_significant:
        sentences.append(
            "With a correction for multiple comparisons, the two do not differ significantly."
        )
    groups = find_equivalent_groups(findings.table)
    ranked_names = set(rows["loss"]).union(*(g for g in groups if set(g) & set(rows["loss"])))
    unranked = [n for n in ranked["loss"] if n not in ranked_names]
    if unranked:
        sentences.append(f"Not ranked, because no seed was repeated: {join_words(unranked)}.")
    if findings.best_split != "test":
        sentences.append("Validation classes only: run `study confirm` before you publish.")
    floor = findings.noise_floor
    if len(floor):
        worst = float(np.nanmax(floor[["validation", "test"]].to_numpy(dtype=float)))
        names = "; ".join(f"{join_words(g)} are the same function and share a rank" for g in groups)
        sentences.append(f"{names}; their own scores differ by up to {worst:.3f}.")
    return " ".join(sentences)


def _describe_trial_counts(findings: StudyFindings) -> str:
    trials = findings.table.trials
    states = trials["state"].value_counts()
    kinds = ("finished", "stopped", "diverged", "failed")
    parts = [f"{int(states[s])} {s}" for s in kinds if s in states]
    text = f"{len(trials)} trials" + (f" ({', '.join(parts)})" if parts else "")
    running = int(states.get("running", 0))
    if running:
        text += f"; {running} still running, so this page is not final"
    return text + "."


def _describe_claims(findings: StudyFindings) -> str:
    counts = {str(k): int(v) for k, v in findings.claims["verdict"].value_counts().items()}
    parts = [f"{counts[v]} {v}" for v in ("supported", "contradicted") if v in counts]
    if "cannot tell" in counts:
        parts.append(f"{counts['cannot tell']} not decided by these trials")
    return f"Of {len(findings.claims)} claims: {join_words(parts)}." if parts else ""


def _advise_on_params(
    findings: StudyFindings, found: LossFindings, loss: str
) -> list[tuple[str, str]]:
    space = findings.table.spaces[loss]
    if isinstance(found.stable_ranges, Refusal):
        return [("Hyperparameters", f"Cannot tell yet. {found.stable_ranges.reason}")]
    published = _published_values_to_keep(found)
    to_set, to_leave, undecided = [], [], []
    for row in found.stable_ranges.to_dict("records"):
        param = str(row["knob"])
        label = param_label(space, param)
        is_stable = row["status"] == "stable"
        if is_stable and row["share"] >= LEAVE_SHARE:
            to_leave.append(label)
        elif param in published:
            to_leave.append(f"{label} at the published {format_value(published[param])}")
        elif is_stable and not row["values"]:
            low, high = format_value(row["low"]), format_value(row["high"])
            text = f"{label} to {low}" if low == high else f"{label} to {low}–{high}"
            outer = f"{format_value(row['outer_low'])}–{format_value(row['outer_high'])}"
            is_narrow = row["share"] <= NARROW_SHARE
            to_set.append(f"{text} ({outer} is not excluded)" if is_narrow else text)
        elif is_stable:
            to_set.append(f"{label} to {str(row['values']).replace(', ', ' or ')}")
        else:
            undecided.append(f"{label} (best so far {format_value(row['best'])})")
    points = []
    if to_set:
        points.append(("Set", join_words(to_set) + "."))
    if to_leave:
        points.append(("Leave", join_words(to_leave) + "."))
    if undecided:
        text = f"{join_words(undecided)}: the trials do not determine the safe range."
        points.append(("Cannot tell", text))
    return points


def _published_values_to_keep(found: LossFindings) -> dict[str, object]:
    """Return the hyperparameters that may stay at their published value, with that value."""
    if isinstance(found.tuning, Refusal):
        return {}
    values = dict(
        zip(found.tuning.tunability["knob"], found.tuning.tunability["published"], strict=True)
    )
    keep = found.tuning.leave
    return {str(k): values[k] for k in keep.loc[keep["verdict"] == "may stay", "knob"]}
