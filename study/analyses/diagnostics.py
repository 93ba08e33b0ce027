"""What is wrong with a search space or a study that its scores do not show?

`check_spaces` needs no trials and runs before the search; `check_results` reads a trial table.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces.space import SearchSpace, describe_distribution
from search_spaces.unit_scale import to_unit
from study.analyses import equivalent_losses
from study.analyses.leaderboard import find_incumbent_trial
from study.analyses.optimization_history import analyse_optimization_history
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.analyses.surrogate.surrogate import min_trials_to_fit
from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import PARAM_PREFIX, SEARCH_ORIGINS, TrialTable

DIAGNOSTIC_COLUMNS = ("loss", "knob", "rule", "message")

COUPLED_PARAMS: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"proxy_lr", "adam_eps"}),
        "Adam's eps scales the steps of rarely used proxies like their learning rate",
    ),
    (frozenset({"temperature", "scale"}), "both scale the same cosine"),
    (frozenset({"temperature", "proxy_lr"}), "the proxies' gradient scales with 1/temperature"),
    (frozenset({"scale", "proxy_lr"}), "the proxies' gradient scales with the scale"),
    (frozenset({"alpha", "proxy_lr"}), "the proxies' gradient scales with alpha"),
    (frozenset({"gamma", "proxy_lr"}), "the proxies' gradient scales with gamma"),
)
"""Pairs of hyperparameters that act together, and why."""


def check_spaces(
    spaces: Mapping[str, SearchSpace],
    *,
    trials: int | Mapping[str, int] | None = None,
    sobol: int | Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Return warnings about the search spaces of a plan.

    Args:
        spaces: Search space of each loss.
        trials: Trials per loss, one number for all losses or one for each; None if unknown.
        sobol: Number of them that are Sobol points, likewise.

    Returns:
        `loss`, `knob` (or empty), `rule`, `message`.
    """
    rows = []
    for loss, space in spaces.items():
        for param, distribution in space.distributions.items():
            rows += [
                (loss, param, *warning) for warning in _check_param(space, param, distribution)
            ]
        for pair, reason in COUPLED_PARAMS:
            if pair <= set(space.searched_params):
                names = " and ".join(sorted(pair))
                message = (
                    f"{names} act together: {reason}. "
                    "Look at their joint response, not at their single curves."
                )
                # The names of the rules are values of lint.csv, which do not change.
                rows.append((loss, "", "coupled knobs", message))
        rows += [
            (loss, "", "published out of range", _format_sentence(reason))
            for reason in space.excluded_points
        ]
        if not space.published:
            message = (
                "No published point lies in the searched ranges, "
                "so there is nothing to compare tuning with."
            )
            rows.append((loss, "", "published out of range", message))
        budget = _budget_of_loss(trials, loss), _budget_of_loss(sobol, loss)
        rows += [(loss, "", *warning) for warning in _check_budget(space, *budget)]
    for group in equivalent_losses.find_equivalent_losses(spaces):
        for a, b in combinations(group, 2):
            message = (
                f"{a} and {b} are the same function: "
                "their difference measures the noise, do not rank them."
            )
            rows.append((a, "", "alias", message))
    for a, b, difference in equivalent_losses.find_differently_trained_pairs(spaces):
        message = (
            f"{a} and {b} are the same function but are trained differently ({difference}): they "
            "are ranked as two set-ups, and their gap is not a noise floor."
        )
        rows.append((a, "", "alias", message))
    return pd.DataFrame(rows, columns=list(DIAGNOSTIC_COLUMNS))


def _format_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _budget_of_loss(number: int | Mapping[str, int] | None, loss: str) -> int | None:
    return number.get(loss) if isinstance(number, Mapping) else number


def check_table_spaces(table: TrialTable) -> pd.DataFrame:
    """Return the warnings of `check_spaces` for a study, with its actual or planned budget."""
    planned = int(table.protocol.get("trials_per_loss") or 0)
    points = table.trials[table.trials["origin"].isin(SEARCH_ORIGINS)]
    counts = {loss: points[points["loss"] == loss]["origin"] for loss in table.spaces}
    # Points run in this order, so the Sobol part may be incomplete until all points have run.
    complete = {loss: origins for loss, origins in counts.items() if len(origins) >= planned}
    return check_spaces(
        table.spaces,
        trials={loss: max(len(origins), planned) for loss, origins in counts.items()},
        sobol={loss: int((origins == "sobol").sum()) for loss, origins in complete.items()},
    )


def check_planned_spaces(
    spaces: Mapping[str, SearchSpace], *, trials: int, sobol: int
) -> list[str]:
    """Return the warnings of `check_spaces` before a study is run, one line each.

    Args:
        trials: Trials per loss.
        sobol: Number of them that are Sobol points.
    """
    warnings = check_spaces(spaces, trials=trials, sobol=sobol)
    return [_format_warning(row) for row in warnings.to_dict("records")]


def _format_warning(row: Mapping[Hashable, Any]) -> str:
    subject = " ".join(str(row[k]) for k in ("loss", "knob") if row[k])
    return f"{subject}: {row['message']}"


def check_results(table: TrialTable) -> pd.DataFrame:
    """Return warnings that need trials, with the columns of `check_spaces`."""
    rows = []
    for loss in table.spaces:
        rows += [(loss, *warning) for warning in _check_optimum_on_bound(table, loss)]
        rows += [(loss, "", *warning) for warning in _check_search_progress(table, loss)]
        rows += [(loss, "", *warning) for warning in _check_training(table, loss)]
    if table.spaces and len(table.trials) and not estimate_seed_noise(table).is_measured:
        message = "No seed was repeated: differences cannot be distinguished from seed noise."
        rows.append(("", "", "no repeats", message))
    return pd.DataFrame(rows, columns=list(DIAGNOSTIC_COLUMNS))


def _check_param(space: SearchSpace, param: str, distribution: object) -> list[tuple[str, str]]:
    out = []
    if isinstance(distribution, FloatDistribution | IntDistribution):
        low, high = float(distribution.low), float(distribution.high)
        if not distribution.log and low > 0 and high / low >= 20:
            message = (
                f"{describe_distribution(distribution)} spans {np.log10(high / low):.1f} decades "
                "on a linear scale: nine tenths of the trials fall into the last decade. "
                "Use a log scale."
            )
            out.append(("linear over decades", message))
        # Several published points may share a value: it is reported once.
        for value in dict.fromkeys(float(point.values[param]) for point in space.published):
            position = float(to_unit(distribution, [value])[0])
            edge = 0.02 if isinstance(distribution, FloatDistribution) else -1.0
            if position <= edge or position >= 1 - edge:
                message = f"The published value {value:g} lies on a bound of the range."
                out.append(("published on a bound", message))
    return out


def _check_budget(
    space: SearchSpace, trials: int | None, sobol: int | None
) -> list[tuple[str, str]]:
    params = len(space.searched_params)
    out = []
    if trials is not None and trials < min_trials_to_fit(params):
        message = (
            f"{trials} trials are too few to model {params} hyperparameters; "
            f"{min_trials_to_fit(params)} are needed."
        )
        out.append(("budget too small", message))
    if sobol is not None and sobol < 2 * params:
        message = (
            f"{sobol} Sobol trials for {params} hyperparameters: regions that the search avoids "
            f"will stay unknown; plan {2 * params} or more."
        )
        out.append(("too few space-filling trials", message))
    return out


def _check_optimum_on_bound(
    table: TrialTable, loss: str, *, edge: float = 0.03
) -> list[tuple[str, str, str]]:
    """Check whether the best trials cluster at an end of a range: the optimum may lie outside."""
    trials = select_validation_trials(table, loss)
    full = trials[(trials["epochs"] >= get_full_epochs(table, loss)) & trials["score"].notna()]
    if len(full) < 8:
        return []
    best = full["score"].rank(ascending=False, method="first") <= max(len(full) // 10, 3)
    out = []
    for param, distribution in table.spaces[loss].distributions.items():
        if isinstance(distribution, CategoricalDistribution):
            continue
        values = full[PARAM_PREFIX + param].to_numpy(dtype=float)
        if isinstance(distribution, IntDistribution):
            ends = values <= distribution.low, values >= distribution.high
        else:
            positions = to_unit(distribution, values)
            ends = positions <= edge, positions >= 1 - edge
        for side, at in zip(("lower", "upper"), ends, strict=True):
            share, rest = float(at[best].mean()), float(at[~best].mean())
            # The best value of an irrelevant hyperparameter can lie anywhere, so the other trials
            # must be at the bound less often.
            if share >= 0.5 and share >= 2 * rest:
                bounds = describe_distribution(distribution)
                message = f"The best trials lie on the {side} bound of {bounds}."
                out.append((param, "optimum on a bound", message))
    return out


def _check_search_progress(table: TrialTable, loss: str) -> list[tuple[str, str]]:
    """Check whether the best score still improved in the last fifth of the search."""
    rows = analyse_optimization_history(table)
    rows = rows[(rows["loss"] == loss) & rows["best"].notna()]
    sigma = estimate_seed_noise(table).sigma
    if len(rows) < 15:
        return []
    before = float(rows["best"].iloc[int(0.8 * len(rows)) - 1])
    gain = float(rows["best"].iloc[-1]) - before
    is_noise_known = np.isfinite(sigma)
    if gain <= (2 * sigma if is_noise_known else 0.0):
        return []
    caveat = "" if is_noise_known else " (or the gain is luck: seed noise unknown)"
    message = f"The last fifth of the search still gained {gain:.4f}: extend the search{caveat}."
    return [("still improving", message)]


def _check_training(table: TrialTable, loss: str) -> list[tuple[str, str]]:
    out = []
    trials = select_validation_trials(table, loss)
    ended = trials[trials["state"] != "running"]
    diverged = float((ended["state"] == "diverged").mean()) if len(ended) else 0.0
    if diverged > 0.25:
        message = (
            f"{diverged:.0%} of the trials diverged: narrow the ranges (see the divergence map)."
        )
        out.append(("many diverged", message))
    failed = ended[ended["state"] == "failed"]
    if len(failed):
        message = f"{len(failed)} trials failed for reasons other than divergence."
        # They count towards the budget of the loss and are not run again: their seeds are missing.
        if repeats := int((failed["origin"] == "repeat").sum()):
            message += f" {repeats} of them were repeats: seed noise is based on fewer seeds."
        out.append(("failed trials", message))
    best, sigma = find_incumbent_trial(table, loss), estimate_seed_noise(table).sigma
    if best is not None and np.isfinite(sigma) and not table.curves.empty:
        curve = table.curves[table.curves["trial"] == best["trial"]].sort_values("epoch")["score"]
        tail = max(len(curve) // 5, 1)
        if len(curve) >= 5 and float(curve.iloc[-1] - curve.iloc[-1 - tail]) > 2 * sigma:
            message = "The best trial was still improving at its last epoch: train for more epochs."
            out.append(("epochs too few", message))
    return out
