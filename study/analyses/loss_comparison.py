"""Which loss is really better, and how certain is that?

Confirmed test scores decide: the best point of each loss, trained again with fresh seeds and tested
on classes that the search never used. Without them, repeats or the model on validation classes give
a weaker answer, and the frames say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind, ttest_rel

from study.analyses import equivalent_losses
from study.analyses.intervals import compute_mean_interval
from study.analyses.leaderboard import (
    UNTRAINED_BACKBONE_LABEL,
    find_incumbent_trial,
    select_published_trials,
)
from study.analyses.surrogate.observations import FloatArray
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.analyses.surrogate.surrogate import Refusal, SurrogateModel
from study.analyses.tunability import find_tuned_point
from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import TrialTable


def summarise_confirmed_scores(table: TrialTable) -> pd.DataFrame:
    """Return the test scores of confirmed points, best first, with 95 % intervals over seeds.

    Returns:
        `loss`, `point` (`tuned` or `published`), `seeds`, `mean`, `low`, `high`, `sigma`; and a row
        for the untrained backbone if its test score is known.
    """
    rows = []
    for loss in table.spaces:
        for kind in ("tuned", "published"):
            scores = get_confirmed_scores(table, loss, kind)
            if len(scores):
                rows.append((loss, kind, len(scores), *compute_mean_interval(scores.to_numpy())))
    objective = str(table.protocol.get("objective", "score"))
    untrained = table.baseline.get("test", {}).get(objective)
    if rows and untrained is not None:
        nan = float("nan")
        rows.append((UNTRAINED_BACKBONE_LABEL, "", 0, float(untrained), nan, nan, nan))
    columns = ["loss", "point", "seeds", "mean", "low", "high", "sigma"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values("mean", ascending=False, ignore_index=True)


def get_confirmed_scores(table: TrialTable, loss: str, kind: str = "tuned") -> pd.Series:
    """Return the test scores by seed of the tuned or published point of a loss."""
    return select_confirmed_trials(table, loss, kind).groupby("seed")["score"].mean().astype(float)


def select_confirmed_trials(table: TrialTable, loss: str, kind: str = "tuned") -> pd.DataFrame:
    """Select the trials on test classes at the tuned or published point of a loss."""
    trials = table.trials_of(loss)
    trials = trials[(trials["split"] == "test") & trials["score"].notna()]
    published = select_published_trials(table, loss, split="test")["trial"]
    at_published = trials["trial"].isin(published) | (trials["anchor"] == "published")
    # If the published point is also the best one, its trials count as both.
    chosen = trials[at_published if kind == "published" or at_published.all() else ~at_published]
    if len(chosen) and kind == "tuned":
        chosen = chosen[chosen["point"] == _confirmed_tuned_point(table, loss, chosen)]
    return chosen


def _confirmed_tuned_point(table: TrialTable, loss: str, confirmed: pd.DataFrame) -> str:
    """Return the best point of the search if it was confirmed, else the one confirmed last.

    The choice uses validation scores only: test scores must not select a point.
    """
    best = find_incumbent_trial(table, loss)
    if best is not None and (confirmed["point"] == best["point"]).any():
        return str(best["point"])
    return str(confirmed.sort_values("number")["point"].iloc[-1])


def compare_losses_pairwise(table: TrialTable) -> pd.DataFrame:
    """Compare the confirmed test scores of every two tuned losses, with Holm's correction.

    Two names of the same function, trained identically, are not compared: their difference is the
    noise floor. The test is paired by seed if at least three seeds are shared, else Welch's test.

    Returns:
        `loss`, `other`, `difference`, `low`, `high` (95 %, uncorrected), `p`, `test`, `p_holm`,
        `verdict` (`better`, `worse`, `cannot tell`, at a corrected 5 %).
    """
    rows = []
    scores = {loss: get_confirmed_scores(table, loss) for loss in table.spaces}
    groups = find_equivalent_groups(table)
    for a, b in combinations([k for k, v in scores.items() if len(v) >= 2], 2):
        if any(a in group and b in group for group in groups):
            continue
        rows.append((a, b, *_test_difference(scores[a], scores[b])))
    columns = ["loss", "other", "difference", "low", "high", "p", "test"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["p_holm"] = apply_holm_correction(frame["p"].to_numpy(dtype=float))
    is_significant = frame["p_holm"] < 0.05
    direction = np.where(frame["difference"] > 0, "better", "worse")
    frame["verdict"] = np.where(is_significant, direction, "cannot tell")
    return frame.sort_values("p", ignore_index=True)


def apply_holm_correction(p: FloatArray) -> FloatArray:
    """Apply Holm's step-down correction; the order is kept."""
    order = np.argsort(p)
    scaled = p[order] * (len(p) - np.arange(len(p)))
    out = np.empty_like(p)
    out[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return out


def draw_tuned_scores(
    table: TrialTable,
    models: Mapping[str, SurrogateModel | Refusal],
    *,
    seed: int = 0,
    n: int = 4000,
) -> tuple[dict[str, FloatArray], str]:
    """Draw plausible scores of the tuned point of every loss.

    From test scores if every loss with scores is confirmed with at least two seeds, else from
    validation scores: repeats of the incumbent (without the winning trial), else the model at its
    best point.

    Returns:
        Draws by loss, and the split that they come from.
    """
    rng = np.random.default_rng(seed)
    losses = [loss for loss in table.spaces if find_incumbent_trial(table, loss) is not None]
    tested = {loss: get_confirmed_scores(table, loss).to_numpy(dtype=float) for loss in losses}
    if losses and all(len(v) >= 2 for v in tested.values()):
        return {k: _draw_t_means(v, rng, n) for k, v in tested.items()}, "test"
    out = {}
    for loss in losses:
        draws = _draw_validation_scores(table, loss, models.get(loss), rng, n)
        if draws is not None:
            out[loss] = draws
    return out, "validation"


def estimate_probability_best(draws: Mapping[str, FloatArray]) -> pd.DataFrame:
    """Return the probability that each loss has the highest score.

    Returns:
        `loss`, `score`, `low`, `high` (90 %), `probability`; most probable first.
    """
    columns = ["loss", "score", "low", "high", "probability"]
    if not draws:
        return pd.DataFrame(columns=columns)
    stacked = np.stack(list(draws.values()))
    wins = np.bincount(stacked.argmax(axis=0), minlength=len(stacked)) / stacked.shape[1]
    low, high = np.quantile(stacked, [0.05, 0.95], axis=1)
    rows = zip(draws, stacked.mean(axis=1), low, high, wins, strict=True)
    frame = pd.DataFrame(list(rows), columns=columns)
    return frame.sort_values("probability", ascending=False, ignore_index=True)


def find_equivalent_groups(table: TrialTable) -> list[tuple[str, ...]]:
    """Return the groups of losses that are the same function, trained identically."""
    return equivalent_losses.find_equivalent_losses(table.spaces)


def pool_equivalent_draws(
    draws: Mapping[str, FloatArray], groups: Sequence[Sequence[str]]
) -> dict[str, FloatArray]:
    """Return the draws with one entry per function.

    Equivalent losses share the entry of the first one, which takes their draws in turn.
    """
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


def measure_noise_floor(table: TrialTable) -> pd.DataFrame:
    """Return how far apart two names of the same loss, trained identically, came out (an A/A test).

    A difference between losses that is not clearly larger is search noise.

    Returns:
        `loss`, `other`, and the absolute differences `validation` and `test`.
    """
    rows = []
    for group in find_equivalent_groups(table):
        for a, b in combinations(group, 2):
            incumbents = [find_incumbent_trial(table, name) for name in (a, b)]
            if incumbents[0] is None or incumbents[1] is None:
                continue
            validation = abs(float(incumbents[0]["score"]) - float(incumbents[1]["score"]))
            scores = [get_confirmed_scores(table, name) for name in (a, b)]
            are_confirmed = all(len(s) for s in scores)
            test = abs(float(scores[0].mean() - scores[1].mean())) if are_confirmed else np.nan
            rows.append((a, b, validation, test))
    return pd.DataFrame(rows, columns=["loss", "other", "validation", "test"])


def summarise_epoch_cost(table: TrialTable) -> pd.DataFrame:
    """Return seconds per epoch of every loss: median, quartiles, and ratio to the cheapest.

    Nodes and batch sizes differ between trials; the quartiles show by how much.
    """
    rows = []
    for loss in table.spaces:
        trials = table.trials_of(loss)
        trials = trials[(trials["epochs"] > 0) & (trials["seconds"] > 0)]
        if len(trials):
            each = (trials["seconds"] / trials["epochs"]).to_numpy(dtype=float)
            rows.append((loss, *np.quantile(each, [0.5, 0.25, 0.75]), len(each)))
    frame = pd.DataFrame(rows, columns=["loss", "seconds_per_epoch", "low", "high", "trials"])
    cheapest = frame["seconds_per_epoch"].min()
    return frame.assign(ratio=frame["seconds_per_epoch"] / cheapest)


def _test_difference(a: pd.Series, b: pd.Series) -> tuple[float, float, float, float, str]:
    shared = sorted(set(a.index) & set(b.index))
    if len(shared) >= 3:
        x, y = a[shared].to_numpy(), b[shared].to_numpy()
        if np.ptp(x - y) < 1e-15:
            gap = float((x - y).mean())
            return gap, gap, gap, 1.0 if gap == 0 else 0.0, "paired t"
        result, name = ttest_rel(x, y), "paired t"
    else:
        x, y = a.to_numpy(), b.to_numpy()
        result, name = ttest_ind(x, y, equal_var=False), "Welch t"
    low, high = result.confidence_interval(0.95)
    return float(x.mean() - y.mean()), float(low), float(high), float(result.pvalue), name


def _draw_t_means(scores: FloatArray, rng: np.random.Generator, n: int) -> FloatArray:
    spread = scores.std(ddof=1) / np.sqrt(len(scores))
    return np.asarray(scores.mean() + spread * rng.standard_t(len(scores) - 1, n))


def _draw_validation_scores(
    table: TrialTable,
    loss: str,
    model: SurrogateModel | Refusal | None,
    rng: np.random.Generator,
    n: int,
) -> FloatArray | None:
    best = find_incumbent_trial(table, loss)
    if best is None:
        return None
    trials = select_validation_trials(table, loss)
    repeats = trials[(trials["point"] == best["point"]) & (trials["trial"] != best["trial"])]
    full = repeats["epochs"] >= get_full_epochs(table, loss)
    repeats = repeats[full & repeats["score"].notna()]
    noise = estimate_seed_noise(table)
    if len(repeats) and noise.is_measured:
        spread = noise.sigma / np.sqrt(len(repeats))
        shocks = rng.standard_t(max(noise.degrees_of_freedom, 1), n)
        return np.asarray(float(repeats["score"].mean()) + spread * shocks)
    if isinstance(model, SurrogateModel):
        return np.asarray(rng.choice(model.draw_scores(find_tuned_point(model))[:, 0], n))
    return None
