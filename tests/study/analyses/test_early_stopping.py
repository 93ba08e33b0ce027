"""Early stopping: rank correlations, predictions and missing evidence."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from study.analyses import early_stopping
from study.report.writer import write_report
from study.trials.table import TrialTable
from tests.support.analysis_contract import TableAnalysisContract
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


@pytest.mark.parametrize(("crossing", "verdict"), [(False, "safe"), (True, "unsafe")])
def test_stopping_is_safe_only_if_early_ranks_are_final_ranks(crossing: bool, verdict: str) -> None:
    problem = SyntheticLoss(
        make_unit_space("a", ["x", "y"]), make_additive_response([0.3, 0.1]), noise=0.001
    )
    table = make_table([problem], SyntheticPlan(trials=40, bayes=False))
    if crossing:  # the early scores of the best trials are the worst
        late = table.curves["epoch"] > 20
        turned = table.curves["score"].where(late, 1.0 - table.curves["score"])
        table = replace(table, curves=table.curves.assign(score=turned))
    rows = early_stopping.analyse_early_stopping(table, "a")
    assert len(rows) == 2
    assert set(rows["verdict"]) == {verdict}
    # Curves that cross together are predicted all the same.
    assert rows["best_foretold"].all()
    # A single curve that rises from the bottom is not: it would have been stopped.
    unstoppable = table.trials[table.trials["origin"] != "repeat"]
    best = unstoppable.set_index("trial")["score"].idxmax()
    is_early_best = (table.curves["trial"] == best) & (table.curves["epoch"] <= 20)
    worst = table.curves["score"].where(~is_early_best, 0.9 if crossing else 0.1)
    rows = early_stopping.analyse_early_stopping(
        replace(table, curves=table.curves.assign(score=worst)), "a"
    )
    assert not rows["best_foretold"].any()


@pytest.mark.parametrize(
    ("stops", "recorded", "rungs", "survives"),
    [
        (True, [3, 4, 6, 8, 9, 11], [3], True),  # epochs recorded by the search
        (True, [], [3], True),  # an import: no trial was stopped earlier
        (False, [4, 6, 8, 11], [4, 9], True),  # no trial was stopped, but could have been
        (False, [], [3, 9], False),  # the epochs are unknown, so all scores count
    ],
)
def test_stopping_is_judged_by_what_the_search_could_see(
    stops: bool, recorded: list[int], rungs: list[int], survives: bool
) -> None:
    """With a frozen backbone the best was slow; before the grace period this does not count."""
    problem = SyntheticLoss(
        make_unit_space("a", ["x", "y"]), make_additive_response([0.3, 0.1]), noise=0.001
    )
    table = make_table([problem], SyntheticPlan(trials=40, bayes=stops))
    assert (table.trials["state"] == "stopped").any() == stops
    final = table.trials.set_index("trial")["score"]
    best = final[table.trials.set_index("trial")["origin"].isin(["sobol", "published"])].idxmax()
    scores = table.curves.pivot(index="trial", columns="epoch", values="score")
    gained = final.where(final.index != best, 0.1).reindex(scores.index)
    for epoch in (1, 2):  # the others gain from here to the third epoch what they reach finally
        scores[epoch] = scores[3] - gained
    curves = scores.melt(ignore_index=False, value_name="score").reset_index().dropna()
    protocol = {**table.protocol, **({"foretold_at": {"a": recorded}} if recorded else {})}
    rows = early_stopping.analyse_early_stopping(
        replace(table, curves=curves, protocol=protocol), "a"
    )
    assert rows["epoch"].tolist() == rungs
    assert rows["best_foretold"].iloc[0] == survives


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "is_missing"), [(14, True), (40, False)])
def test_missing_evidence_is_explained_in_the_report(
    trials: int, is_missing: bool, tmp_path: Path
) -> None:
    problem = SyntheticLoss(
        make_unit_space("a", ["x", "y"]), make_additive_response([0.3, 0.1]), noise=0.001
    )
    table = make_table([problem], SyntheticPlan(trials=trials))
    stopped = int((table.trials["state"] == "stopped").sum())
    assert stopped
    rows = early_stopping.analyse_early_stopping(table, "a")
    reason = early_stopping.explain_missing_evidence(table, "a")
    assert bool(len(rows)) != is_missing
    assert bool(reason) == is_missing
    page = write_report(table, tmp_path, formats=("png",)).index_path.read_text("utf-8")
    assert ("a: cannot tell" in page) == is_missing
    if is_missing:
        assert f"{stopped} trials were stopped" in page
    unstopped = replace(table, trials=table.trials[table.trials["state"] != "stopped"])
    assert not early_stopping.explain_missing_evidence(unstopped, "a"), "no trial was stopped"


@pytest.mark.parametrize("levels", [1000, 4])
def test_the_correlation_is_spearmans_also_with_ties(levels: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(levels, size=25).astype(float)
    b = np.round(a + levels * rng.random(25))
    rho, low, high = early_stopping.compute_spearman_interval(a, b, 0)
    assert rho == pytest.approx(spearmanr(a, b).statistic)
    draws = np.random.default_rng(0).integers(25, size=(400, 25))
    resampled = [spearmanr(a[draw], b[draw]).statistic for draw in draws]
    assert (low, high) == pytest.approx(tuple(np.quantile(resampled, [0.05, 0.95])))


def test_constant_scores_have_no_correlation_and_cause_no_warning() -> None:
    rising, constant = np.arange(6.0), np.full(6, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert early_stopping.compute_spearman_interval(rising, constant, 0) == (0.0, 0.0, 0.0)
        assert early_stopping.compute_spearman_interval(constant, rising, 0) == (0.0, 0.0, 0.0)
        # Resamples that happen to be constant count as uncorrelated.
        _, low, _ = early_stopping.compute_spearman_interval(np.arange(2.0), np.arange(2.0), 0)
        assert low == 0.0


class TestContract(TableAnalysisContract):
    columns = tuple(early_stopping.EARLY_STOPPING_COLUMNS)

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return early_stopping.analyse_early_stopping(table, "a")
