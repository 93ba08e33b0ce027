"""Requested jobs: sweeps, confirmations and suggested points."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from search_spaces.unit_scale import to_unit
from study.errors import StudyError
from study.search.requests import (
    confirm_seed,
    jobs_from_points,
    make_confirm_jobs,
    make_sweep_jobs,
    sweep_values,
)
from tests.support.scheduler_simulation import (
    find_incumbents,
    make_plan,
    open_scheduler,
    simulate_trials,
)


def test_confirm_uses_fresh_seeds_common_to_all_points(tmp_path: Path) -> None:
    plan = make_plan(protocol={"confirm_seeds": 3})
    jobs = simulate_trials(open_scheduler(plan, tmp_path))
    confirm = make_confirm_jobs(plan, find_incumbents(plan, tmp_path))
    used = {job.seed for job in jobs}
    by_point: dict[str, set[int]] = {}
    for job in confirm:
        by_point.setdefault(job.point, set()).add(job.seed)
    assert len(by_point) == 4
    assert len({frozenset(seeds) for seeds in by_point.values()}) == 1
    assert not used & {job.seed for job in confirm}


def test_sweeps_vary_one_hyperparameter_at_a_time() -> None:
    plan = make_plan()
    anchor = plan.example_point("proxy_anchor")
    jobs = make_sweep_jobs(plan, {}, params=["alpha"], losses=["proxy_anchor"], values=5, seeds=1)
    assert {j.anchor for j in jobs} == {"published"}
    values = sorted(float(j.params["alpha"]) for j in jobs)
    assert len(values) == len(set(values)) >= 5
    assert anchor["alpha"] in values
    for job in jobs:
        assert {k: v for k, v in job.params.items() if k != "alpha"} == {
            k: v for k, v in anchor.items() if k != "alpha"
        }


@pytest.mark.parametrize(("param", "count"), [("proxy_lr", 7), ("delta", 7), ("alpha", 6)])
def test_a_sweep_trains_no_value_twice(param: str, count: int) -> None:
    """A grid value that equals the anchor's except for rounding is not added."""
    plan = make_plan(losses=["proxy_anchor"])
    anchor = plan.example_point("proxy_anchor")
    values = sweep_values(plan, "proxy_anchor", param, anchor[param], count)
    places = to_unit(plan.spaces["proxy_anchor"].distributions[param], values)
    assert anchor[param] in values
    assert len(values) in (count, count + 1)
    assert np.diff(places).min() > 1e-3


def test_a_choice_is_swept_over_all_its_values() -> None:
    pooling = {"search": {"pooling": {"choices": ["avg", "max"]}}}
    plan = make_plan(losses={"proxy_anchor": pooling})
    assert sweep_values(plan, "proxy_anchor", "pooling", "avg", 7) == ["avg", "max"]


def test_a_sweep_of_an_unknown_hyperparameter_names_the_nearest() -> None:
    plan = make_plan()
    with pytest.raises(StudyError, match="'alpa'; did you mean 'alpha'"):
        make_sweep_jobs(plan, {}, params=["alpa"], losses=plan.losses, values=3, seeds=1)


def test_a_sweep_needs_a_point_to_vary() -> None:
    """The published point is out of range, and no trial has finished."""
    plan = make_plan(losses={"triplet": {"search": {"margin": [5.0, 6.0]}}})
    with pytest.raises(StudyError, match="triplet has neither a published point nor"):
        make_sweep_jobs(plan, {}, params=["margin"], losses=["triplet"], values=3, seeds=1)
    incumbents = {"triplet": plan.example_point("triplet")}
    jobs = make_sweep_jobs(
        plan, incumbents, params=["margin"], losses=["triplet"], values=3, seeds=2
    )
    assert {job.anchor for job in jobs} == {"incumbent"}
    assert list(Counter(job.seed for job in jobs).values()) == [3, 3]


def test_an_incumbent_equal_to_the_published_point_is_confirmed_once() -> None:
    plan = make_plan(losses=["triplet"], protocol={"confirm_seeds": 2})
    jobs = make_confirm_jobs(plan, {"triplet": plan.example_point("triplet")})
    assert [(job.anchor, job.split) for job in jobs] == [("published", "test")] * 2
    assert [job.seed for job in jobs] == [confirm_seed(plan, 0), confirm_seed(plan, 1)]


def test_suggested_points_become_jobs_of_plain_values() -> None:
    search = {"margin": [0.0, 1.0], "batch_size": [8, 64], "pooling": {"choices": ["avg", "max"]}}
    plan = make_plan(losses={"triplet": {"search": search}})
    rest = {f"knob.{k}": v for k, v in plan.example_point("triplet").items()}
    point = {**rest, "knob.margin": 0.25, "knob.batch_size": 32.0, "knob.pooling": "max"}
    points = pd.DataFrame(
        [
            {"loss": "triplet", "origin": "sweep", "anchor": "", "swept": "", "seed": 0, **point},
            {
                "loss": "triplet",
                "origin": "confirm",
                "anchor": "incumbent",
                "swept": "",
                "seed": 1,
                **point,
            },
        ]
    )
    refined, confirmed = jobs_from_points(plan, points, reason="refine")
    assert (refined.origin, refined.anchor, refined.split) == ("sweep", "refine", "validation")
    assert (confirmed.origin, confirmed.anchor, confirmed.split) == ("confirm", "incumbent", "test")
    assert refined.params["margin"] == 0.25
    assert refined.params["batch_size"] == 32
    assert isinstance(refined.params["batch_size"], int)
    assert refined.params["pooling"] == "max"
    assert confirmed.seed == confirm_seed(plan, 1)
