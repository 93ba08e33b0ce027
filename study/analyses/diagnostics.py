"""What is wrong with a space or a study that its numbers will not show?

`lint_spaces` needs no trials and runs before any is paid for; `lint_results` reads a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces.scale import to_unit
from search_spaces.space import Space, describe
from study.analyses import twins
from study.analyses.history import analyse as history
from study.analyses.leaderboard import incumbent
from study.analyses.noise import seed_noise
from study.analyses.samples import full_epochs, searching
from study.analyses.surrogate import least_trials
from study.table import KNOB, TrialTable

COLUMNS = ("loss", "knob", "rule", "message")

COUPLED: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"proxy_lr", "adam_eps"}),
        "Adam's eps scales the steps of rarely used proxies as their learning rate does",
    ),
    (frozenset({"temperature", "scale"}), "both scale the same cosine"),
    (frozenset({"temperature", "proxy_lr"}), "the gradient of proxies scales with 1/temperature"),
    (frozenset({"scale", "proxy_lr"}), "the gradient of proxies scales with the scale"),
    (frozenset({"alpha", "proxy_lr"}), "the gradient of proxies scales with alpha"),
    (frozenset({"gamma", "proxy_lr"}), "the gradient of proxies scales with gamma"),
)


def lint_spaces(
    spaces: Mapping[str, Space],
    *,
    trials: int | Mapping[str, int] | None = None,
    sobol: int | Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Warnings about the spaces of a plan with `trials` per loss, `sobol` of them Sobol points.

    Both are one number for all losses, one for each, or unknown.

    Returns `loss`, `knob` (or empty), `rule`, `message`.
    """
    rows = []
    for loss, space in spaces.items():
        for knob, distribution in space.distributions.items():
            rows += [(loss, knob, *found) for found in _lint_knob(space, knob, distribution)]
        for pair, why in COUPLED:
            if pair <= set(space.searched):
                names = " and ".join(sorted(pair))
                message = f"{names} act together: {why}. Read their pair, not their single curves."
                rows.append((loss, "", "coupled knobs", message))
        rows += [(loss, "", "published out of range", _sentence(why)) for why in space.left_out]
        if not space.published:
            message = "No published point lies in the searched ranges; tuning has no start to beat."
            rows.append((loss, "", "published out of range", message))
        rows += [
            (loss, "", *found) for found in _lint_budget(space, _of(trials, loss), _of(sobol, loss))
        ]
    for group in twins.one_function(spaces):
        for a, b in combinations(group, 2):
            message = f"{a} and {b} are one function: compare them for the noise, do not rank them."
            rows.append((a, "", "alias", message))
    for a, b, why in twins.trained_apart(spaces):
        message = (
            f"{a} and {b} are one function, but not trained alike ({why}): they are ranked as two "
            "set-ups, and their gap is no noise floor."
        )
        rows.append((a, "", "alias", message))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _of(number: int | Mapping[str, int] | None, loss: str) -> int | None:
    return number.get(loss) if isinstance(number, Mapping) else number


def lint_table(table: TrialTable) -> pd.DataFrame:
    """What `lint_spaces` says of a study that was run: with the points it has, or is to have."""
    planned = int(table.protocol.get("trials_per_loss") or 0)
    points = table.trials[table.trials["origin"].isin(["published", "sobol", "bayes"])]
    counts = {loss: points[points["loss"] == loss]["origin"] for loss in table.spaces}
    # Points come in this order, so while any other is missing the Sobol part may be unfinished.
    done = {loss: origins for loss, origins in counts.items() if len(origins) >= planned}
    return lint_spaces(
        table.spaces,
        trials={loss: max(len(origins), planned) for loss, origins in counts.items()},
        sobol={loss: int((origins == "sobol").sum()) for loss, origins in done.items()},
    )


def lint_plan(spaces: Mapping[str, Space], *, trials: int, sobol: int) -> list[str]:
    """The warnings before anything is run, one line each; the budget is that of each loss."""
    found = lint_spaces(spaces, trials=trials, sobol=sobol)
    return [_line(row) for row in found.to_dict("records")]


def _line(row: Mapping[Hashable, Any]) -> str:
    where = " ".join(str(row[k]) for k in ("loss", "knob") if row[k])
    return f"{where}: {row['message']}"


def lint_results(table: TrialTable) -> pd.DataFrame:
    """Warnings that only trials can give; the same columns."""
    rows = []
    for loss in table.spaces:
        rows += [(loss, *found) for found in _bounds(table, loss)]
        rows += [(loss, "", *found) for found in _search(table, loss)]
        rows += [(loss, "", *found) for found in _training(table, loss)]
    if table.spaces and len(table.trials) and not seed_noise(table).measured:
        message = "No seed was repeated: differences cannot be told from luck."
        rows.append(("", "", "no repeats", message))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _lint_knob(space: Space, knob: str, distribution: object) -> list[tuple[str, str]]:
    out = []
    if isinstance(distribution, FloatDistribution | IntDistribution):
        low, high = float(distribution.low), float(distribution.high)
        if not distribution.log and low > 0 and high / low >= 20:
            message = (
                f"{describe(distribution)} spans {np.log10(high / low):.1f} decades on a linear "
                "scale: nine tenths of the trials fall into the last one. Use a log scale."
            )
            out.append(("linear over decades", message))
        # Several published points may share a value: it is said once.
        for value in dict.fromkeys(float(point.values[knob]) for point in space.published):
            place = float(to_unit(distribution, [value])[0])
            edge = 0.02 if isinstance(distribution, FloatDistribution) else -1.0
            if place <= edge or place >= 1 - edge:
                message = f"The published value {value:g} sits on a bound of the range."
                out.append(("published on a bound", message))
    return out


def _lint_budget(space: Space, trials: int | None, sobol: int | None) -> list[tuple[str, str]]:
    knobs = len(space.searched)
    out = []
    if trials is not None and trials < least_trials(knobs):
        message = f"{trials} trials cannot model {knobs} knobs; {least_trials(knobs)} are needed."
        out.append(("budget too small", message))
    if sobol is not None and sobol < 2 * knobs:
        message = (
            f"{sobol} Sobol trials for {knobs} knobs: regions that the search avoids will stay "
            f"unknown; plan {2 * knobs} or more."
        )
        out.append(("too few space-filling trials", message))
    return out


def _bounds(table: TrialTable, loss: str, *, edge: float = 0.03) -> list[tuple[str, str, str]]:
    """The best points crowd at an end of the range: the optimum may lie outside."""
    trials = searching(table, loss)
    done = trials[(trials["epochs"] >= full_epochs(table, loss)) & trials["score"].notna()]
    if len(done) < 8:
        return []
    best = done["score"].rank(ascending=False, method="first") <= max(len(done) // 10, 3)
    out = []
    for knob, distribution in table.spaces[loss].distributions.items():
        if isinstance(distribution, CategoricalDistribution):
            continue
        values = done[KNOB + knob].to_numpy(dtype=float)
        if isinstance(distribution, IntDistribution):
            ends = values <= distribution.low, values >= distribution.high
        else:
            places = to_unit(distribution, values)
            ends = places <= edge, places >= 1 - edge
        for side, at in zip(("lower", "upper"), ends, strict=True):
            share, rest = float(at[best].mean()), float(at[~best].mean())
            # A knob that does not matter may end anywhere: the others must sit there less often.
            if share >= 0.5 and share >= 2 * rest:
                message = f"The best trials sit on the {side} bound of {describe(distribution)}."
                out.append((knob, "optimum on a bound", message))
    return out


def _search(table: TrialTable, loss: str) -> list[tuple[str, str]]:
    """The best score still rose in the last fifth of the search."""
    rows = history(table)
    rows = rows[(rows["loss"] == loss) & rows["best"].notna()]
    sigma = seed_noise(table).sigma
    if len(rows) < 15:
        return []
    before = float(rows["best"].iloc[int(0.8 * len(rows)) - 1])
    gain = float(rows["best"].iloc[-1]) - before
    known = np.isfinite(sigma)
    if gain <= (2 * sigma if known else 0.0):
        return []
    todo = "extend it" if known else "extend it, unless that is luck (seed noise unknown)"
    message = f"The last fifth of the search still gained {gain:.4f}: {todo}."
    return [("still improving", message)]


def _training(table: TrialTable, loss: str) -> list[tuple[str, str]]:
    out = []
    trials = searching(table, loss)
    ended = trials[trials["state"] != "running"]
    diverged = float((ended["state"] == "diverged").mean()) if len(ended) else 0.0
    if diverged > 0.25:
        message = (
            f"{diverged:.0%} of the trials diverged: see the divergence map, narrow the range."
        )
        out.append(("many diverged", message))
    failed = ended[ended["state"] == "failed"]
    if len(failed):
        message = f"{len(failed)} trials failed for reasons other than the loss."
        # They are part of the loss's budget and are not run again, so their seeds are missing.
        if repeats := int((failed["origin"] == "repeat").sum()):
            message += f" {repeats} of them repeated a point: its seed noise rests on fewer seeds."
        out.append(("failed trials", message))
    best, sigma = incumbent(table, loss), seed_noise(table).sigma
    if best is not None and np.isfinite(sigma) and not table.curves.empty:
        curve = table.curves[table.curves["trial"] == best["trial"]].sort_values("epoch")["score"]
        tail = max(len(curve) // 5, 1)
        if len(curve) >= 5 and float(curve.iloc[-1] - curve.iloc[-1 - tail]) > 2 * sigma:
            message = "The best trial was still improving at its last epoch: train longer."
            out.append(("epochs too few", message))
    return out
