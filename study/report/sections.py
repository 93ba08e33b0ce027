"""Sections of the report page: their order, their tables and the text around the figures."""

from __future__ import annotations

from typing import Any

import pandas as pd

from search_spaces.space import SearchSpace
from study.analyses import early_stopping
from study.analyses.findings import LossFindings, StudyFindings
from study.analyses.surrogate.surrogate import SURROGATE_NAMES, Refusal
from study.report.figures import (
    comparison,
    divergence,
    history,
    importance,
    leaderboard,
    pairs,
    response,
    sweeps,
    tuning,
)
from study.report.formatting import (
    PAGE_COLUMN_NAMES,
    format_percent,
    format_probability,
    format_rounded_score,
    format_value,
    param_label,
)
from study.report.html_page import PageBlock, PageSection
from study.trials.table import PARAM_PREFIX, TrialTable

_BASIS_LABELS = {"sweep": "sweep", "model": "model", "trials": "trials", "nothing": "–"}


def build_sections(findings: StudyFindings) -> list[PageSection]:
    """Build all sections: comparison, claims, one per loss (best first), search, next trials."""
    order = [n for n in findings.leaderboard["loss"] if n in findings.losses]
    out = [_comparison_section(findings)]
    if len(findings.claims):
        out.append(_claims_section(findings))
    out += [_loss_section(findings, loss) for loss in order]
    out += [_search_section(findings), _checks_section(findings), _next_trials_section(findings)]
    return [s for s in out if s.blocks]


def _comparison_section(findings: StudyFindings) -> PageSection:
    blocks = []
    confirmed = comparison.build_confirmed_scores_chart(findings)
    if confirmed:
        blocks.append(PageBlock(chart=confirmed))
    blocks.append(PageBlock(chart=leaderboard.build_leaderboard_chart(findings)))
    blocks.append(
        PageBlock(table=_leaderboard_table(findings), caption="Search, on validation classes")
    )
    if len(findings.best_probabilities):
        frame = findings.best_probabilities.rename(
            columns={"score": f"{findings.best_split} score", "probability": "P(best)"}
        )
        frame = frame.assign(**{"P(best)": [format_probability(p) for p in frame["P(best)"]]})
        blocks.append(PageBlock(table=frame, caption="Probability of being the best loss"))
    if len(findings.pairwise_tests):
        columns = ["loss", "other", "difference", "low", "high", "p_holm", "test", "verdict"]
        caption = "Test scores of tuned losses in pairs; p values corrected by Holm's method"
        blocks.append(PageBlock(table=findings.pairwise_tests[columns], caption=caption))
    if len(findings.epoch_selection_bias):
        names = {"best_epoch": "best epoch", "last": "last epoch"}
        caption = (
            "Gain from picking the best test epoch (the report's scores are of the last epoch)"
        )
        blocks.append(
            PageBlock(table=findings.epoch_selection_bias.rename(columns=names), caption=caption)
        )
    if len(findings.noise_floor):
        caption = (
            "A/A noise floor: the two losses are the same function, so differences between other "
            "losses that are not larger are search noise"
        )
        blocks.append(PageBlock(table=findings.noise_floor, caption=caption))
    if len(findings.epoch_cost):
        names = {"seconds_per_epoch": "s / epoch", "low": "25 %", "high": "75 %"}
        frame = findings.epoch_cost.rename(columns=names)
        blocks.append(
            PageBlock(table=frame, caption="Cost per epoch: median and quartiles over trials")
        )
    return PageSection("compare", "Losses compared", blocks)


def _leaderboard_table(findings: StudyFindings) -> pd.DataFrame:
    frame = findings.leaderboard
    columns = (
        "loss",
        "best",
        "repeated",
        "published",
        "seed_sigma",
        "trials",
        "stopped",
        "diverged",
        "running",
        "epochs",
    )
    present = [c for c in columns if c in frame and not (c == "running" and not frame[c].any())]
    names = {"seed_sigma": "seed σ", "repeated": "best, repeated"}
    return frame[present].rename(columns=names)


def _claims_section(findings: StudyFindings) -> PageSection:
    frame = findings.claims
    page_table = pd.DataFrame(
        {
            "loss": frame["loss"],
            "claim": frame["statement"],
            "verdict": frame["verdict"],
            "decided by": frame["basis"].map(_BASIS_LABELS),
            "evidence": frame["evidence"],
            "tested by": frame["test"],
            "source": frame["source"],
            "would settle it": frame["settle"].replace("", "–"),
        }
    )
    lead = (
        "Statements of the papers, tested on these trials. A claim is supported at a probability "
        "of 95 % or more and contradicted at 5 % or less. The tolerance is the effect of the seed "
        "alone unless the study file sets it."
    )
    return PageSection("claims", "Claims of the papers", [PageBlock(table=page_table)], lead)


def _loss_section(findings: StudyFindings, loss: str) -> PageSection:
    found, space = findings.losses[loss], findings.table.spaces[loss]
    blocks: list[PageBlock] = [PageBlock(text=_describe_model(found, space))]
    if not isinstance(found.stable_ranges, Refusal):
        caption = (
            "Stable ranges: values whose score is within "
            f"{format_rounded_score(found.tolerance.value, 4)} of the best "
            f"({found.tolerance.source}) with 95 % probability, averaged over good settings of the "
            "other hyperparameters. The last column answers another question: may the "
            "hyperparameter stay at its published value if the others are tuned to it?"
        )
        blocks.append(PageBlock(table=_stable_range_table(found, space), caption=caption))
    elif found.stable_ranges != found.surrogate:
        blocks.append(PageBlock(text=found.stable_ranges.reason, warn=True))
    blocks.append(PageBlock(chart=response.build_response_chart(findings, loss)))
    if isinstance(found.importance, Refusal):
        blocks.append(PageBlock(text=f"No importances: {found.importance.reason}", warn=True))
    else:
        blocks.append(PageBlock(chart=importance.build_importance_chart(findings, loss)))
    builders = (
        pairs.build_pair_surface_chart,
        sweeps.build_sweep_chart,
        divergence.build_divergence_chart,
        tuning.build_tuning_gain_chart,
    )
    blocks += [PageBlock(chart=c) for c in (build(findings, loss) for build in builders) if c]
    if len(found.collapsed_trials):
        count = len(found.collapsed_trials)
        text = f"Collapsed: {count} trials ran to the end and score below the untrained backbone."
        blocks.append(PageBlock(text=text, warn=True))
    return PageSection(f"loss-{loss}", loss, blocks, f"{space.paper}.")


def _describe_model(found: LossFindings, space: SearchSpace) -> str:
    model = found.surrogate
    if isinstance(model, Refusal):
        return f"No model of this loss: {model.reason}"
    first, *others = model.cv_results
    rest = ", ".join(f"{SURROGATE_NAMES[q.kind]} {format_percent(q.r2)}" for q in others)
    sentences = [
        f"Model: {SURROGATE_NAMES[first.kind]}, selected by cross-validation over settings. It "
        f"explains {format_percent(first.r2)} of the variance of unseen settings ({rest}), and its "
        f"90 % intervals contain {format_percent(first.coverage)} of their scores."
    ]
    widest = max((factor for _, factor in first.calibration_curve), default=1.0)
    if widest >= 1.05:
        sentences.append(
            f"Where intervals were too narrow, they are widened, by a factor of up to {widest:.1f}."
        )
    observations = model.observations
    if observations.n_excluded_trials:
        total = observations.n_trials + observations.n_excluded_trials
        sentences.append(
            f"It is fitted to {observations.n_trials} of {total} trials, the most it can handle: "
            "trials that the sampler did not choose first, then an even selection of those it "
            "chose, because these cluster."
        )
    if model.jump_location is not None:
        param, low, high = model.jump_location
        at = f"{param_label(space, param)} {format_value(low)}–{format_value(high)}"
        sentences.append(f"The score jumps at {at}.")
    return " ".join(sentences)


def _stable_range_table(found: LossFindings, space: SearchSpace) -> pd.DataFrame:
    assert isinstance(found.stable_ranges, pd.DataFrame)
    verdicts: dict[str, str] = {}
    if not isinstance(found.tuning, Refusal):
        rows = found.tuning.leave
        verdicts = dict(zip(rows["knob"], rows["verdict"], strict=True))
    return pd.DataFrame(
        [
            {
                "hyperparameter": param_label(space, str(row["knob"])),
                "safe values": _format_safe_values(row),
                "share of the range": format_percent(float(row["share"])),
                "best": format_value(row["best"]),
                "not excluded": _format_outer_range(row),
                "cost at worst": format_rounded_score(row["cost"]),
                "at its published value": verdicts.get(str(row["knob"]), "–"),
            }
            for row in found.stable_ranges.to_dict("records")
        ]
    )


def _format_safe_values(row: dict[Any, Any]) -> str:
    if row["status"] != "stable":
        return str(row["status"])
    if row["values"]:
        return str(row["values"])
    return f"{format_value(row['low'])} – {format_value(row['high'])}"


def _format_outer_range(row: dict[Any, Any]) -> str:
    if row["outer_low"] is None or row["outer_low"] != row["outer_low"]:
        return "–"
    return f"{format_value(row['outer_low'])} – {format_value(row['outer_high'])}"


def _search_section(findings: StudyFindings) -> PageSection:
    blocks = [PageBlock(chart=history.build_history_chart(findings))]
    budget = tuning.build_expected_best_chart(findings)
    if budget:
        blocks.append(PageBlock(chart=budget))
    rows = [
        frame.assign(loss=loss)
        for loss, frame in ((n, f.early_stopping) for n, f in findings.losses.items())
        if len(frame)
    ]
    if rows:
        frame = pd.concat(rows, ignore_index=True)
        caption = (
            "Was early stopping safe? Rank correlation of early with final scores among trials "
            "that cannot be stopped; whether the final best was in the better third at that epoch "
            "(best kept), and whether the learning curves of the others would have let it continue "
            "(best predicted)"
        )
        names = {"best_kept": "best kept", "best_foretold": "best predicted"}
        frame = frame[["loss", *early_stopping.EARLY_STOPPING_COLUMNS]].rename(columns=names)
        blocks.append(PageBlock(table=frame, caption=caption))
    reasons = {
        loss: early_stopping.explain_missing_evidence(findings.table, loss)
        for loss in findings.losses
    }
    blocks += [
        PageBlock(text=f"Was early stopping safe? {loss}: cannot tell. {reason}.")
        for loss, reason in reasons.items()
        if reason
    ]
    return PageSection("search", "The search", blocks)


def _checks_section(findings: StudyFindings) -> PageSection:
    blocks = []
    if len(findings.diagnostics):
        warnings = findings.diagnostics.rename(columns=PAGE_COLUMN_NAMES)
        blocks.append(PageBlock(table=warnings, caption="Warnings about spaces and trials"))
    rows = []
    for loss, found in findings.losses.items():
        noise = found.seed_noise
        model = found.surrogate
        row: dict[str, Any] = {
            "loss": loss,
            "seed σ": noise.sigma,
            "low": noise.low,
            "high": noise.high,
        }
        row |= {
            "from": f"{noise.source} ({noise.degrees_of_freedom} df)",
            "tolerance": found.tolerance.value,
        }
        if isinstance(model, Refusal):
            row |= {"model": "none", "R²": float("nan"), "90 % coverage": float("nan")}
        else:
            best = model.selected_cv_result
            name = SURROGATE_NAMES[best.kind]
            row |= {"model": name, "R²": best.r2, "90 % coverage": best.coverage}
        rows.append(row)
    blocks.append(PageBlock(table=pd.DataFrame(rows), caption="Seed noise and models"))
    return PageSection("checks", "Checks", blocks)


def _next_trials_section(findings: StudyFindings) -> PageSection:
    frame = findings.suggested_trials
    if frame.empty:
        return PageSection("next", "Next trials", [])
    lead = (
        "The trials that would narrow these answers most; "
        f"`study refine {findings.table.study} --run` runs them."
    )
    table = format_suggested_points(frame, findings.table)
    return PageSection("next", "Next trials", [PageBlock(table=table)], lead)


def format_suggested_points(frame: pd.DataFrame, table: TrialTable) -> pd.DataFrame:
    """Return the points to run, with their hyperparameters in one column."""
    points = []
    for row in frame.to_dict("records"):
        params = table.searched_param_names(str(row["loss"]))
        points.append(", ".join(f"{k} {format_value(row[PARAM_PREFIX + k])}" for k in params))
    page_table = frame[["loss", "origin", "seed", "why"]].assign(point=points)
    if "worth" in frame:
        page_table["narrows"] = [format_percent(float(w)) for w in frame["worth"]]
    return page_table
