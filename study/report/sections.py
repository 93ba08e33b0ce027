"""In which order is a study told, and with which words between the figures?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from search_spaces.space import Space
from study.analyses import stopping
from study.analyses.findings import Findings, LossFindings
from study.analyses.surrogate import NAMES, Refusal
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
from study.report.page import Block, Section
from study.report.words import chance, knob_label, number, percent, score
from study.table import KNOB, TrialTable

_BASIS = {"sweep": "sweep", "model": "model", "trials": "trials", "nothing": "–"}


def sections(findings: Findings) -> list[Section]:
    """Comparison, claims, one section per loss (best first), search, and what to do next."""
    order = [n for n in findings.leaderboard["loss"] if n in findings.losses]
    out = [_compare(findings)]
    if len(findings.claims):
        out.append(_claims(findings))
    out += [_loss(findings, loss) for loss in order]
    out += [_search(findings), _checks(findings), _next(findings)]
    return [s for s in out if s.blocks]


def _compare(findings: Findings) -> Section:
    blocks = []
    tested = comparison.chart(findings)
    if tested:
        blocks.append(Block(chart=tested))
    blocks.append(Block(chart=leaderboard.chart(findings)))
    blocks.append(Block(table=_board(findings), caption="Search, on validation classes"))
    if len(findings.best):
        where = findings.best_split
        frame = findings.best.rename(
            columns={"score": f"{where} score", "probability": "best with"}
        )
        frame = frame.assign(**{"best with": [chance(p) for p in frame["best with"]]})
        blocks.append(Block(table=frame, caption="Probability of being the best loss"))
    if len(findings.paired):
        columns = ["loss", "other", "difference", "low", "high", "p_holm", "test", "verdict"]
        caption = "Tuned losses in pairs, test scores; p corrected by Holm"
        blocks.append(Block(table=findings.paired[columns], caption=caption))
    if len(findings.inflation):
        names = {"best_epoch": "best epoch", "last": "last epoch"}
        caption = "What picking the best test epoch would have added (scores here are the last's)"
        blocks.append(Block(table=findings.inflation.rename(columns=names), caption=caption))
    if len(findings.noise_floor):
        text = "Names of one and the same function: differences below these are search noise."
        blocks.append(Block(table=findings.noise_floor, caption=f"A/A noise floor. {text}"))
    if len(findings.cost):
        names = {"seconds_per_epoch": "s / epoch", "low": "quarter", "high": "three quarters"}
        frame = findings.cost.rename(columns=names)
        blocks.append(Block(table=frame, caption="Cost per epoch, median over trials"))
    return Section("compare", "Losses compared", blocks)


def _board(findings: Findings) -> pd.DataFrame:
    board = findings.leaderboard
    wanted = (
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
    shown = [c for c in wanted if c in board and not (c == "running" and not board[c].any())]
    names = {"seed_sigma": "seed σ", "repeated": "best, repeated"}
    return board[shown].rename(columns=names)


def _claims(findings: Findings) -> Section:
    frame = findings.claims
    shown = pd.DataFrame(
        {
            "loss": frame["loss"],
            "claim": frame["statement"],
            "verdict": frame["verdict"],
            "decided by": frame["basis"].map(_BASIS),
            "evidence": frame["evidence"],
            "tested by": frame["test"],
            "source": frame["source"],
            "would settle it": frame["settle"].replace("", "–"),
        }
    )
    lead = (
        "What the papers say, put to these trials. Supported and contradicted need 95 %; tolerance "
        "is what the seed alone does, unless you set it."
    )
    return Section("claims", "Claims of the papers", [Block(table=shown)], lead)


def _loss(findings: Findings, loss: str) -> Section:
    found, space = findings.losses[loss], findings.table.spaces[loss]
    blocks: list[Block] = [Block(text=_model_line(found, space))]
    if not isinstance(found.stable, Refusal):
        caption = (
            f"Stable ranges: within {score(found.tolerance.value, 4)} of the best "
            f"({found.tolerance.source}) with 95 %, on average over good settings of the others. "
            "The last column asks something else: may the knob stay at its published value if the "
            "others are tuned to it?"
        )
        blocks.append(Block(table=_ranges(found, space), caption=caption))
    elif found.stable != found.surrogate:
        blocks.append(Block(text=found.stable.reason, warn=True))
    blocks.append(Block(chart=response.chart(findings, loss)))
    if isinstance(found.importance, Refusal):
        blocks.append(Block(text=f"No importances: {found.importance.reason}", warn=True))
    else:
        blocks.append(Block(chart=importance.chart(findings, loss)))
    drawn = (pairs.chart, sweeps.chart, divergence.chart, tuning.chart)
    blocks += [Block(chart=c) for c in (draw(findings, loss) for draw in drawn) if c]
    if len(found.collapsed):
        count = len(found.collapsed)
        text = f"{count} trials trained to the end and fell below the untrained backbone."
        blocks.append(Block(text=text, warn=True))
    return Section(f"loss-{loss}", loss, blocks, f"{space.paper}.")


def _model_line(found: LossFindings, space: Space) -> str:
    model = found.surrogate
    if isinstance(model, Refusal):
        return f"No model of this loss: {model.reason}"
    first, *others = model.quality
    rest = ", ".join(f"{NAMES[q.kind]} {percent(q.r2)}" for q in others)
    words = (
        f"Model: {NAMES[first.kind]}, chosen by cross-validation over settings; explains "
        f"{percent(first.r2)} of what unseen settings score ({rest}); its 90 % intervals hold "
        f"{percent(first.coverage)} of them"
    )
    widest = max((factor for _, factor in first.spread), default=1.0)
    if widest >= 1.05:
        words += f"; bands are widened up to {widest:.1f} times, where it is too sure of them"
    if model.samples.left_out:
        kept = model.samples.trials
        words += (
            f". It learned from {kept} of {kept + model.samples.left_out} trials, as many as it "
            "can take: blind ones first, and of those the search chose, which crowd, every so many"
        )
    if model.jump is not None:
        knob, low, high = model.jump
        words += f". The score jumps at {knob_label(space, knob)} {number(low)}–{number(high)}"
    return words + "."


def _ranges(found: LossFindings, space: Space) -> pd.DataFrame:
    assert isinstance(found.stable, pd.DataFrame)
    verdicts: dict[str, str] = {}
    if not isinstance(found.tuned, Refusal):
        rows = found.tuned.leave
        verdicts = dict(zip(rows["knob"], rows["verdict"], strict=True))
    return pd.DataFrame(
        [
            {
                "knob": knob_label(space, str(row["knob"])),
                "safe values": _safe(row),
                "share of the range": percent(float(row["share"])),
                "best": number(row["best"]),
                "not excluded": _outer(row),
                "cost at worst": score(row["cost"]),
                "at its published value": verdicts.get(str(row["knob"]), "–"),
            }
            for row in found.stable.to_dict("records")
        ]
    )


def _safe(row: dict[Any, Any]) -> str:
    if row["status"] != "stable":
        return str(row["status"])
    if row["values"]:
        return str(row["values"])
    return f"{number(row['low'])} – {number(row['high'])}"


def _outer(row: dict[Any, Any]) -> str:
    if row["outer_low"] is None or row["outer_low"] != row["outer_low"]:
        return "–"
    return f"{number(row['outer_low'])} – {number(row['outer_high'])}"


def _search(findings: Findings) -> Section:
    blocks = [Block(chart=history.chart(findings))]
    budget = tuning.expected(findings)
    if budget:
        blocks.append(Block(chart=budget))
    rows = [
        frame.assign(loss=loss)
        for loss, frame in ((n, f.stopping) for n, f in findings.losses.items())
        if len(frame)
    ]
    if rows:
        frame = pd.concat(rows, ignore_index=True)
        caption = (
            "Was early stopping safe? Rank correlation of early with final scores among trials "
            "that nothing could stop; whether the best of them was in the better third then, and "
            "whether the others' learning curves would have let it go on"
        )
        blocks.append(Block(table=frame[["loss", *stopping.COLUMNS]], caption=caption))
    unknown = {loss: stopping.unknown(findings.table, loss) for loss in findings.losses}
    blocks += [
        Block(text=f"Was early stopping safe? {loss}: cannot tell. {why}.")
        for loss, why in unknown.items()
        if why
    ]
    return Section("search", "The search", blocks)


def _checks(findings: Findings) -> Section:
    blocks = []
    if len(findings.lint):
        blocks.append(Block(table=findings.lint, caption="What to mind about spaces and trials"))
    rows = []
    for loss, found in findings.losses.items():
        noise = found.noise
        model = found.surrogate
        row: dict[str, Any] = {
            "loss": loss,
            "seed σ": noise.sigma,
            "low": noise.low,
            "high": noise.high,
        }
        row |= {"from": f"{noise.source} ({noise.freedom} df)", "tolerance": found.tolerance.value}
        if isinstance(model, Refusal):
            row |= {"model": "none", "R²": float("nan"), "90 % holds": float("nan")}
        else:
            best = model.best
            row |= {"model": NAMES[best.kind], "R²": best.r2, "90 % holds": best.coverage}
        rows.append(row)
    blocks.append(Block(table=pd.DataFrame(rows), caption="Seed noise and models"))
    return Section("checks", "Checks", blocks)


def _next(findings: Findings) -> Section:
    frame = findings.advice
    if frame.empty:
        return Section("next", "Next trials", [])
    shown = readable_points(frame, findings.table)
    lead = "The trials that would narrow these answers most (`study refine` runs them)."
    return Section("next", "Next trials", [Block(table=shown)], lead)


def readable_points(frame: pd.DataFrame, table: TrialTable) -> pd.DataFrame:
    """Points to run with their knobs in one column."""
    points = []
    for row in frame.to_dict("records"):
        knobs = table.knobs(str(row["loss"]))
        points.append(", ".join(f"{k} {number(row[KNOB + k])}" for k in knobs))
    shown = frame[["loss", "origin", "seed", "why"]].assign(point=points)
    if "worth" in frame:
        shown["narrows"] = [percent(float(w)) for w in frame["worth"]]
    return shown
