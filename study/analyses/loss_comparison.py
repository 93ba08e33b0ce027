"""Which loss is really better, and how sure is that?

Confirmed test scores decide: the best point of each loss, trained again with fresh seeds on test
classes that the search never saw. Without them, repeats or the model on validation classes give a
weaker answer, and the frames say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import t as student
from scipy.stats import ttest_ind, ttest_rel

from study.analyses import twins
from study.analyses.leaderboard import incumbent, published_trials
from study.analyses.noise import seed_noise
from study.analyses.samples import Array, full_epochs, searching
from study.analyses.surrogate import Refusal, Surrogate
from study.analyses.tuning import tuned_point
from study.table import TrialTable


def confirmed(table: TrialTable) -> pd.DataFrame:
    """Test scores of confirmed points, best first, with 95 % intervals over seeds.

    Returns `loss`, `point` (`tuned` or `published`), `seeds`, `mean`, `low`, `high`, `sigma`; and
    the untrained backbone when its test score is known.
    """
    rows = []
    for loss in table.spaces:
        for kind in ("tuned", "published"):
            scores = confirmed_scores(table, loss, kind)
            if len(scores):
                rows.append((loss, kind, len(scores), *_mean_interval(scores.to_numpy())))
    objective = str(table.protocol.get("objective", "score"))
    untrained = table.baseline.get("test", {}).get(objective)
    if rows and untrained is not None:
        nan = float("nan")
        rows.append(("untrained backbone", "", 0, float(untrained), nan, nan, nan))
    columns = ["loss", "point", "seeds", "mean", "low", "high", "sigma"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values("mean", ascending=False, ignore_index=True)


def confirmed_scores(table: TrialTable, loss: str, kind: str = "tuned") -> pd.Series:
    """Test scores by seed of a loss's tuned or published point."""
    return confirmed_trials(table, loss, kind).groupby("seed")["score"].mean().astype(float)


def confirmed_trials(table: TrialTable, loss: str, kind: str = "tuned") -> pd.DataFrame:
    """The trials on test classes of a loss's tuned or published point."""
    trials = table.of(loss)
    trials = trials[(trials["split"] == "test") & trials["score"].notna()]
    known = published_trials(table, loss, split="test")["trial"]
    at_published = trials["trial"].isin(known) | (trials["anchor"] == "published")
    # When the published point is also the best one, it is both.
    chosen = trials[at_published if kind == "published" or at_published.all() else ~at_published]
    if len(chosen) and kind == "tuned":
        chosen = chosen[chosen["point"] == _tuned_point(table, loss, chosen)]
    return chosen


def _tuned_point(table: TrialTable, loss: str, confirmed: pd.DataFrame) -> str:
    """The search's best point if it was confirmed, else the one that was confirmed last.

    By validation scores alone: which point does best on test classes must not matter.
    """
    best = incumbent(table, loss)
    if best is not None and (confirmed["point"] == best["point"]).any():
        return str(best["point"])
    return str(confirmed.sort_values("number")["point"].iloc[-1])


def paired(table: TrialTable) -> pd.DataFrame:
    """Every two tuned losses: difference of confirmed test scores, tested with Holm's correction.

    Two names of one function, trained alike, are not compared: their difference is the noise
    floor. Paired by seed where at least three seeds are shared, else Welch's test.

    Returns `loss`, `other`, `difference`, `low`, `high` (95 %, uncorrected), `p`, `p_holm`,
    `test`, `verdict` (`better`, `worse`, `cannot tell`, at a corrected 5 %).
    """
    rows = []
    scores = {loss: confirmed_scores(table, loss) for loss in table.spaces}
    groups = one_function(table)
    for a, b in combinations([k for k, v in scores.items() if len(v) >= 2], 2):
        if any(a in group and b in group for group in groups):
            continue
        rows.append((a, b, *_difference(scores[a], scores[b])))
    columns = ["loss", "other", "difference", "low", "high", "p", "test"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["p_holm"] = holm(frame["p"].to_numpy(dtype=float))
    sure = frame["p_holm"] < 0.05
    sign = np.where(frame["difference"] > 0, "better", "worse")
    frame["verdict"] = np.where(sure, sign, "cannot tell")
    return frame.sort_values("p", ignore_index=True)


def holm(p: Array) -> Array:
    """Holm's step-down correction; order is kept."""
    order = np.argsort(p)
    scaled = p[order] * (len(p) - np.arange(len(p)))
    out = np.empty_like(p)
    out[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return out


def best_draws(
    table: TrialTable, models: Mapping[str, Surrogate | Refusal], *, seed: int = 0, n: int = 4000
) -> tuple[dict[str, Array], str]:
    """Plausible scores of every loss's tuned point, and where they come from.

    Test scores when every loss that has scores is confirmed with two seeds or more, else
    validation: repeats of the incumbent (without the trial that won), else the model there.
    """
    rng = np.random.default_rng(seed)
    losses = [loss for loss in table.spaces if incumbent(table, loss) is not None]
    tested = {loss: confirmed_scores(table, loss).to_numpy(dtype=float) for loss in losses}
    if losses and all(len(v) >= 2 for v in tested.values()):
        return {k: _t_draws(v, rng, n) for k, v in tested.items()}, "test"
    out = {}
    for loss in losses:
        found = _validation_draws(table, loss, models.get(loss), rng, n)
        if found is not None:
            out[loss] = found
    return out, "validation"


def probability_best(draws: Mapping[str, Array]) -> pd.DataFrame:
    """`loss`, `score`, `low`, `high` (90 %), `probability` of having the highest score."""
    columns = ["loss", "score", "low", "high", "probability"]
    if not draws:
        return pd.DataFrame(columns=columns)
    stacked = np.stack(list(draws.values()))
    wins = np.bincount(stacked.argmax(axis=0), minlength=len(stacked)) / stacked.shape[1]
    low, high = np.quantile(stacked, [0.05, 0.95], axis=1)
    rows = zip(draws, stacked.mean(axis=1), low, high, wins, strict=True)
    frame = pd.DataFrame(list(rows), columns=columns)
    return frame.sort_values("probability", ascending=False, ignore_index=True)


def one_function(table: TrialTable) -> list[tuple[str, ...]]:
    """Groups of the study's losses that are one function under several names, trained alike."""
    return twins.one_function(table.spaces)


def pooled(draws: Mapping[str, Array], groups: Sequence[Sequence[str]]) -> dict[str, Array]:
    """Draws with one entry for each function: names of one share the first one's, in turn."""
    out = dict(draws)
    for group in groups:
        members = [name for name in group if name in out]
        if len(members) > 1:
            stacked = np.stack([out[name] for name in members])
            turn = np.arange(stacked.shape[1])
            out[members[0]] = stacked[turn % len(members), turn]
            for name in members[1:]:
                del out[name]
    return out


def noise_floor(table: TrialTable) -> pd.DataFrame:
    """How far apart two names of the same loss, trained alike, came out (an A/A test).

    A difference between losses that is not clearly larger than this is search noise. Returns
    `loss`, `other`, `validation` and `test` differences (absolute).
    """
    rows = []
    for group in one_function(table):
        for a, b in combinations(group, 2):
            tops = [incumbent(table, name) for name in (a, b)]
            if tops[0] is None or tops[1] is None:
                continue
            gap = abs(float(tops[0]["score"]) - float(tops[1]["score"]))
            tests = [confirmed_scores(table, name) for name in (a, b)]
            known = all(len(t) for t in tests)
            test = abs(float(tests[0].mean() - tests[1].mean())) if known else float("nan")
            rows.append((a, b, gap, test))
    return pd.DataFrame(rows, columns=["loss", "other", "validation", "test"])


def cost(table: TrialTable) -> pd.DataFrame:
    """Seconds per epoch of every loss: median over trials, quartiles, and ratio to the cheapest.

    Nodes and batch sizes differ between trials; the quartiles show how much.
    """
    rows = []
    for loss in table.spaces:
        trials = table.of(loss)
        trials = trials[(trials["epochs"] > 0) & (trials["seconds"] > 0)]
        if len(trials):
            each = (trials["seconds"] / trials["epochs"]).to_numpy(dtype=float)
            rows.append((loss, *np.quantile(each, [0.5, 0.25, 0.75]), len(each)))
    frame = pd.DataFrame(rows, columns=["loss", "seconds_per_epoch", "low", "high", "trials"])
    cheapest = frame["seconds_per_epoch"].min()
    return frame.assign(ratio=frame["seconds_per_epoch"] / cheapest)


def _mean_interval(scores: Array) -> tuple[float, float, float, float]:
    n, mean = len(scores), float(scores.mean())
    if n < 2:
        return mean, float("nan"), float("nan"), float("nan")
    sigma = float(scores.std(ddof=1))
    half = float(student.ppf(0.975, n - 1)) * sigma / np.sqrt(n)
    return mean, mean - half, mean + half, sigma


def _difference(a: pd.Series, b: pd.Series) -> tuple[float, float, float, float, str]:
    shared = sorted(set(a.index) & set(b.index))
    if len(shared) >= 3:
        x, y = a[shared].to_numpy(), b[shared].to_numpy()
        if np.ptp(x - y) < 1e-15:
            gap = float((x - y).mean())
            return gap, gap, gap, 1.0 if gap == 0 else 0.0, "paired t"
        found, name = ttest_rel(x, y), "paired t"
    else:
        x, y = a.to_numpy(), b.to_numpy()
        found, name = ttest_ind(x, y, equal_var=False), "Welch t"
    low, high = found.confidence_interval(0.95)
    return float(x.mean() - y.mean()), float(low), float(high), float(found.pvalue), name


def _t_draws(scores: Array, rng: np.random.Generator, n: int) -> Array:
    spread = scores.std(ddof=1) / np.sqrt(len(scores))
    return np.asarray(scores.mean() + spread * rng.standard_t(len(scores) - 1, n))


def _validation_draws(
    table: TrialTable,
    loss: str,
    model: Surrogate | Refusal | None,
    rng: np.random.Generator,
    n: int,
) -> Array | None:
    best = incumbent(table, loss)
    if best is None:
        return None
    trials = searching(table, loss)
    again = trials[(trials["point"] == best["point"]) & (trials["trial"] != best["trial"])]
    again = again[(again["epochs"] >= full_epochs(table, loss)) & again["score"].notna()]
    noise = seed_noise(table)
    if len(again) and noise.measured:
        spread = noise.sigma / np.sqrt(len(again))
        shocks = rng.standard_t(max(noise.freedom, 1), n)
        return np.asarray(float(again["score"].mean()) + spread * shocks)
    if isinstance(model, Surrogate):
        return np.asarray(rng.choice(model.draws(tuned_point(model))[:, 0], n))
    return None
