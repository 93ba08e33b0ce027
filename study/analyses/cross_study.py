"""Which stable ranges hold in every study, that is, on every data set and backbone?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from study.analyses.findings import StudyFindings
from study.analyses.leaderboard import UNTRAINED_BACKBONE_LABEL
from study.analyses.surrogate.surrogate import Refusal


def make_distinct_names(findings: Sequence[StudyFindings]) -> list[str]:
    """Return one distinct name per study, even if two studies have the same name."""
    names: list[str] = []
    for study in findings:
        name, k = study.table.study, 2
        while name in names:
            name, k = f"{study.table.study} ({k})", k + 1
        names.append(name)
    return names


def collect_stable_ranges(findings: Sequence[StudyFindings]) -> pd.DataFrame:
    """Return the stable ranges of all studies, one row per loss, hyperparameter and study.

    Returns:
        `loss`, `knob`, `study`, `status`, `low`, `high`, `values`, `best`, `share`.
    """
    frames = []
    for name, study in zip(make_distinct_names(findings), findings, strict=True):
        for loss, loss_findings in study.losses.items():
            if isinstance(loss_findings.stable_ranges, pd.DataFrame):
                frames.append(loss_findings.stable_ranges.assign(loss=loss, study=name))
    columns = ["loss", "knob", "study", "status", "low", "high", "values", "best", "share"]
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)[columns].sort_values(
        ["loss", "knob", "study"], ignore_index=True
    )


def collect_range_refusals(findings: Sequence[StudyFindings]) -> pd.DataFrame:
    """Return the losses for which a study has no stable ranges: `loss`, `study`, `reason`."""
    rows = [
        (loss, name, loss_findings.stable_ranges.reason)
        for name, study in zip(make_distinct_names(findings), findings, strict=True)
        for loss, loss_findings in study.losses.items()
        if isinstance(loss_findings.stable_ranges, Refusal)
    ]
    return pd.DataFrame(rows, columns=["loss", "study", "reason"])


def find_common_ranges(findings: Sequence[StudyFindings]) -> pd.DataFrame:
    """Return the values that are stable in all studies that report a range of the hyperparameter.

    Returns:
        `loss`, `knob`, `studies` (how many report a range; the others did not search the
        hyperparameter or refused to answer), `verdict` (`holds in all` of these, `no common range`,
        or `cannot tell` if the range of some study is undetermined), `low`, `high`, `values`.
    """
    rows = []
    for (loss, param), group in collect_stable_ranges(findings).groupby(
        ["loss", "knob"], sort=True
    ):
        if len(group) < 2:
            continue
        rows.append((loss, param, len(group), *intersect_ranges(group)))
    columns = ["loss", "knob", "studies", "verdict", "low", "high", "values"]
    return pd.DataFrame(rows, columns=columns)


def intersect_ranges(group: pd.DataFrame) -> tuple[str, float, float, str]:
    """Return the verdict and the common range or the common values.

    If one study searched a range and another one choices, the choices within the range are common.
    """
    nan = float("nan")
    if (group["status"] != "stable").any():
        return "cannot tell", nan, nan, ""
    choices, ranges = group[group["low"].isna()], group[group["low"].notna()]
    low, high = -np.inf, np.inf
    if len(ranges):
        low, high = (
            float(ranges["low"].astype(float).max()),
            float(ranges["high"].astype(float).min()),
        )
    if choices.empty:
        return ("holds in all", low, high, "") if low <= high else ("no common range", nan, nan, "")
    sets = [{_normalise_choice(v) for v in str(values).split(", ")} for values in choices["values"]]
    common = set.intersection(*sets) - {""}
    if len(ranges):
        common = {v for v in common if isinstance(v, float) and low <= v <= high}
    names = sorted(common, key=lambda v: (isinstance(v, str), v))
    text = ", ".join(f"{v:g}" if isinstance(v, float) else v for v in names)
    return ("holds in all" if common else "no common range"), nan, nan, text


def _normalise_choice(value: str) -> float | str:
    """Return a number for a numeric choice, so that 32 and 32.0 are equal."""
    try:
        return float(value)
    except ValueError:
        return value


def analyse_rank_agreement(findings: Sequence[StudyFindings]) -> pd.DataFrame:
    """Do the studies rank the losses, and the hyperparameters of each loss, in the same order?

    Returns:
        `study`, `other`, `what` (`losses`, or the name of the loss whose hyperparameters are
        ranked), `common` (how many are ranked in both) and Kendall's `tau`; NaN with fewer than
        three in common.
    """
    labels = make_distinct_names(findings)
    rows = []
    for i, a in enumerate(findings):
        for j in range(i + 1, len(findings)):
            b = findings[j]
            rows.append(
                (labels[i], labels[j], "losses", *_kendall_tau(_best_scores(a), _best_scores(b)))
            )
            for loss in sorted(set(a.losses) & set(b.losses)):
                first, second = a.losses[loss].importance, b.losses[loss].importance
                if isinstance(first, pd.DataFrame) and isinstance(second, pd.DataFrame):
                    shares = [
                        dict(zip(f["knob"], f["total"], strict=True)) for f in (first, second)
                    ]
                    rows.append((labels[i], labels[j], loss, *_kendall_tau(*shares)))
    return pd.DataFrame(rows, columns=["study", "other", "what", "common", "tau"])


def _best_scores(findings: StudyFindings) -> Mapping[str, float]:
    rows = findings.leaderboard
    rows = rows[(rows["loss"] != UNTRAINED_BACKBONE_LABEL) & rows["best"].notna()]
    return {str(k): float(v) for k, v in zip(rows["loss"], rows["best"], strict=True)}


def _kendall_tau(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[int, float]:
    common = sorted(set(a) & set(b))
    if len(common) < 3:
        return len(common), float("nan")
    tau = kendalltau([a[k] for k in common], [b[k] for k in common]).statistic
    return len(common), float(np.nan_to_num(tau))
