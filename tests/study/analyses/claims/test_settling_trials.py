"""Trials that would settle open claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution

from search_spaces.claims import BetterLoss, ClaimTest, GoodValue, PaperClaim, StableRange
from search_spaces.space import Hyperparameter, SearchSpace
from study.analyses import sweeps
from study.analyses.claims import judge, settling_trials
from study.analyses.findings import StudyFindings
from study.analyses.leaderboard import find_incumbent_trial
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import Refusal, SurrogateModel, fit_surrogate
from study.trials.table import PARAM_PREFIX, TrialTable
from tests.support.analysis_contract import AnalysisContract, make_models_without_surrogates
from tests.support.analysis_inputs import make_swept_table
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

Models = Mapping[str, LossModel]

REFUSAL = Refusal("There are too few trials.")


@pytest.mark.xdist_group("demo")
def test_settling_trials_lie_inside_the_space(demo_findings: StudyFindings) -> None:
    table = demo_findings.table
    open_claims = demo_findings.claims[demo_findings.claims["verdict"] == "cannot tell"]
    points = settling_trials.suggest_settling_trials(table, demo_findings.loss_models)
    assert len(open_claims)
    assert len(points)
    for row in open_claims.to_dict("records"):
        only = (str(row["loss"]), str(row["claim"]))
        count = len(
            settling_trials.suggest_settling_trials(table, demo_findings.loss_models, only=only)
        )
        assert str(row["settle"]).endswith(f" ({count} trials).") == (count > 0)
    for row in points.to_dict("records"):
        loss = str(row["loss"])
        values = {k: row[PARAM_PREFIX + k] for k in table.searched_param_names(loss)}
        if "batch_size" in values:
            values["batch_size"] = int(values["batch_size"])
        table.spaces[loss].check_point(values)
        assert row["origin"] in ("sweep", "confirm")


def test_losses_too_close_to_call_get_fresh_confirmation_seeds() -> None:
    claim = PaperClaim("c", "", "", BetterLoss("b"))
    problems = [
        SyntheticLoss(
            make_unit_space(name, ["x"], claims=claims), make_additive_response([0.1]), noise=0.02
        )
        for name, claims in (("a", (claim,)), ("b", ()))
    ]
    table = make_table(problems, SyntheticPlan(trials=8, confirm=3))
    points = settling_trials.suggest_settling_trials(table, make_models_without_surrogates(table))
    assert set(points["loss"]) == {"a", "b"}
    assert set(points["origin"]) == {"confirm"}
    used = set(table.trials.loc[table.trials["split"] == "test", "seed"])
    assert not used & set(points["seed"])


def _make_open_claim(
    space: SearchSpace, test: ClaimTest, *, plan: SyntheticPlan | None = None
) -> tuple[TrialTable, Models]:
    """Make a study with one claim, and a model that cannot judge it."""
    space = replace(space, claims=(PaperClaim("c", "", "", test),))
    width = len(space.distributions)
    table = make_table(
        [SyntheticLoss(space, make_additive_response([0.2] * width))],
        plan or SyntheticPlan(trials=12),
    )
    return table, {"a": LossModel(REFUSAL, REFUSAL, 0.02)}


@pytest.mark.parametrize(
    ("choices", "low", "swept"),
    [
        ((16, 32, 64), 32.0, {16, 32, 64}),
        ((16, 32, 64), 100.0, set()),
        (("avg", "max"), 0.1, set()),
    ],
)
def test_a_claimed_range_of_a_choice_is_swept_over_the_choices(
    choices: tuple[int | str, ...], low: float, swept: set[int]
) -> None:
    param = Hyperparameter(CategoricalDistribution(choices), "k", "test")
    space = SearchSpace(loss="a", paper="", scientific={"k": param})
    points = settling_trials.suggest_settling_trials(
        *_make_open_claim(space, StableRange("k", low=low))
    )
    assert (set(points[PARAM_PREFIX + "k"]) if len(points) else set()) == swept


@pytest.mark.parametrize("test", [BetterLoss("b"), StableRange("x", 0.2, 0.6)])
def test_test_scores_never_select_a_point(test: ClaimTest) -> None:
    """The published point is the best one on test classes, but must not become the base."""
    table, models = _make_open_claim(
        make_unit_space("a", ["x", "y"]), test, plan=SyntheticPlan(trials=12, confirm=3)
    )
    space = make_unit_space("b", ["x", "y"])
    other = make_table(
        [SyntheticLoss(space, make_additive_response([0.2, 0.2]))],
        SyntheticPlan(trials=12, confirm=3),
    )
    trials = pd.concat([table.trials, other.trials], ignore_index=True)
    at_published = (trials[PARAM_PREFIX + "x"] == 0.5) & (trials[PARAM_PREFIX + "y"] == 0.5)
    high = (trials["split"] == "test") & at_published
    assert high.any()
    trials["score"] = trials["score"].mask(high, 0.99)
    trials["seed"] += np.where(trials["split"] == "test", np.arange(len(trials)), 0)
    table = replace(table, trials=trials, spaces={**table.spaces, "b": space})
    points = settling_trials.suggest_settling_trials(table, {**models, "b": models["a"]})
    assert len(points)
    for loss, rows in points.groupby("loss"):
        best = find_incumbent_trial(table, str(loss))
        assert best is not None
        assert best[PARAM_PREFIX + "y"] != 0.5
        assert set(rows[PARAM_PREFIX + "y"]) == {best[PARAM_PREFIX + "y"]}


def test_settling_sweeps_are_labelled_by_the_point_they_vary() -> None:
    table, _ = _make_open_claim(
        make_unit_space("a", ["x", "y"]), StableRange("x", 0.2, 0.6), plan=SyntheticPlan(trials=60)
    )
    model = fit_surrogate(collect_observations(table, "a"))
    assert isinstance(model, SurrogateModel)
    points = settling_trials.suggest_settling_trials(
        table, {"a": LossModel(model, Refusal("no curves"), 0.02)}
    )
    assert len(points)
    (anchor,) = set(points["anchor"])
    base = sweeps.get_anchor_params(table, "a", str(anchor))
    assert base is not None
    assert set(points[PARAM_PREFIX + "y"]) == {base["y"]}


def test_only_missing_seeds_are_suggested() -> None:
    table = make_swept_table(noise=0.03, seeds=2)
    claim = PaperClaim("c", "", "", StableRange("x", low=0.4))
    table = replace(table, spaces={"a": replace(table.spaces["a"], claims=(claim,))})
    models = {"a": LossModel(REFUSAL, REFUSAL, 0.01)}
    first = settling_trials.suggest_settling_trials(table, models)
    counts = first.groupby(PARAM_PREFIX + "x").size()
    assert counts.nunique() == 1
    new_trials = pd.DataFrame(
        [
            {
                **table.trials.iloc[0].to_dict(),
                **{
                    c: row[c]
                    for c in ("origin", "anchor", "swept", PARAM_PREFIX + "x", PARAM_PREFIX + "y")
                },
                "seed": 500 + row["seed"],
                "trial": f"a-8{i:03d}",
                "number": 8000 + i,
                "point": str(row[PARAM_PREFIX + "x"]),
                "score": 0.6 + 0.03 * float(np.random.default_rng(i).standard_normal()),
                "epochs": 27,
                "state": "finished",
            }
            for i, row in enumerate(first.to_dict("records"))
            if row["seed"] < 3
        ]
    )
    later = replace(table, trials=pd.concat([table.trials, new_trials], ignore_index=True))
    second = settling_trials.suggest_settling_trials(later, models)
    assert len(second)
    assert second["seed"].min() == 3


@pytest.mark.parametrize(
    "test", [StableRange("z", 0.2, 0.6), GoodValue("x", 7.0), BetterLoss("missing")]
)
def test_claims_that_no_trial_of_the_study_can_settle_get_none(test: ClaimTest) -> None:
    """The hyperparameter, the value or the other loss is not part of the study."""
    table, models = _make_open_claim(make_unit_space("a", ["x", "y"]), test)
    assert settling_trials.suggest_settling_trials(table, models).empty
    claims = judge.analyse_claims(table, models)
    (text,) = settling_trials.add_trial_counts(table, models, claims)["settle"]
    assert text == claims["settle"].iloc[0], "there is no count to add"


class TestContract(AnalysisContract):
    columns = (*settling_trials.POINT_COLUMNS, PARAM_PREFIX + "x", PARAM_PREFIX + "y")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return settling_trials.suggest_settling_trials(table, make_models_without_surrogates(table))
