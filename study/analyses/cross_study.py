"""Which stable ranges hold in every study: on every data set, with every backbone?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from study.analyses.findings import Findings
from study.analyses.leaderboard import UNTRAINED
from study.analyses.surrogate import Refusal


def names(findings: Sequence[Findings]) -> list[str]:
    """A distinct name for every study, even when two share theirs."""
    out: list[str] = []
    for found in findings:
        name, k = found.table.study, 2
        while name in out:
            name, k = f"{found.table.study} ({k})", k + 1
        out.append(name)
    return out


def ranges(findings: Sequence[Findings]) -> pd.DataFrame:
    """One row per loss, knob and study: the stable range there.

    Returns `loss`, `knob`, `study`, `status`, `low`, `high`, `values`, `best`, `share`.
    """
    frames = []
    for name, found in zip(names(findings), findings, strict=True):
        for loss, one in found.losses.items():
            if isinstance(one.stable, pd.DataFrame):
                frames.append(one.stable.assign(loss=loss, study=name))
    columns = ["loss", "knob", "study", "status", "low", "high", "values", "best", "share"]
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)[columns].sort_values(
        ["loss", "knob", "study"], ignore_index=True
    )


def silent(findings: Sequence[Findings]) -> pd.DataFrame:
    """The losses whose ranges a study cannot tell: `loss`, `study`, `reason`."""
    rows = [
        (loss, name, one.stable.reason)
        for name, found in zip(names(findings), findings, strict=True)
        for loss, one in found.losses.items()
        if isinstance(one.stable, Refusal)
    ]
    return pd.DataFrame(rows, columns=["loss", "study", "reason"])


def common(findings: Sequence[Findings]) -> pd.DataFrame:
    """The values that are stable in all studies that tell the knob's range.

    Returns `loss`, `knob`, `studies` (how many tell it; the others did not search the knob or are
    `silent`), `verdict` (`holds in all` of these, `no common range`, `cannot tell` when some
    study's range is undetermined), `low`, `high`, `values`.
    """
    rows = []
    for (loss, knob), group in ranges(findings).groupby(["loss", "knob"], sort=True):
        if len(group) < 2:
            continue
        rows.append((loss, knob, len(group), *meet(group)))
    columns = ["loss", "knob", "studies", "verdict", "low", "high", "values"]
    return pd.DataFrame(rows, columns=columns)


def meet(group: pd.DataFrame) -> tuple[str, float, float, str]:
    """The verdict, and the common range or the common values.

    Where one study searched a range and another some choices, the choices within the range are
    common.
    """
    nan = float("nan")
    if (group["status"] != "stable").any():
        return "cannot tell", nan, nan, ""
    chosen, ranged = group[group["low"].isna()], group[group["low"].notna()]
    low, high = -np.inf, np.inf
    if len(ranged):
        low, high = (
            float(ranged["low"].astype(float).max()),
            float(ranged["high"].astype(float).min()),
        )
    if chosen.empty:
        return ("holds in all", low, high, "") if low <= high else ("no common range", nan, nan, "")
    sets = [{_alike(v) for v in str(values).split(", ")} for values in chosen["values"]]
    both = set.intersection(*sets) - {""}
    if len(ranged):
        both = {v for v in both if isinstance(v, float) and low <= v <= high}
    names = sorted(both, key=lambda v: (isinstance(v, str), v))
    text = ", ".join(f"{v:g}" if isinstance(v, float) else v for v in names)
    return ("holds in all" if both else "no common range"), nan, nan, text


def _alike(value: str) -> float | str:
    """A choice so that 32 and 32.0 are one."""
    try:
        return float(value)
    except ValueError:
        return value


def agreement(findings: Sequence[Findings]) -> pd.DataFrame:
    """Do the studies rank the losses alike, and the knobs of each loss?

    Returns `study`, `other`, `what` (`losses`, or a loss's name for its knobs), `common` (how many
    were ranked in both) and Kendall's `tau`; NaN with fewer than three in common.
    """
    labels = names(findings)
    rows = []
    for i, a in enumerate(findings):
        for j in range(i + 1, len(findings)):
            b = findings[j]
            rows.append((labels[i], labels[j], "losses", *_tau(_board(a), _board(b))))
            for loss in sorted(set(a.losses) & set(b.losses)):
                first, second = a.losses[loss].importance, b.losses[loss].importance
                if isinstance(first, pd.DataFrame) and isinstance(second, pd.DataFrame):
                    shares = [
                        dict(zip(f["knob"], f["total"], strict=True)) for f in (first, second)
                    ]
                    rows.append((labels[i], labels[j], loss, *_tau(*shares)))
    return pd.DataFrame(rows, columns=["study", "other", "what", "common", "tau"])


def _board(found: Findings) -> Mapping[str, float]:
    board = found.leaderboard
    board = board[(board["loss"] != UNTRAINED) & board["best"].notna()]
    return {str(k): float(v) for k, v in zip(board["loss"], board["best"], strict=True)}


def _tau(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[int, float]:
    both = sorted(set(a) & set(b))
    if len(both) < 3:
        return len(both), float("nan")
    tau = kendalltau([a[k] for k in both], [b[k] for k in both]).statistic
    return len(both), float(np.nan_to_num(tau))
