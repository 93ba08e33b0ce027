"""Losses of pytorch-metric-learning are studied as ours are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from study.errors import StudyError
from study.jobs import Job
from study.plan import Plan
from study.planning import build_plan
from study.read_file import parse_study
from tests.study.driven import write_features
from trainables.training import Training
from trainables.workbench import open_bench

pytest.importorskip("pytorch_metric_learning", reason="the extra `pml` is not installed")


def plan_of(folder: Path, losses: dict[str, Any]) -> Plan:
    content = {
        "name": "library",
        "data": {"name": "arrays", "path": str(write_features(folder))},
        "losses": losses,
        "training": {"epochs": 2, "batch_size": 32, "embedding_dim": 16},
    }
    return build_plan(parse_study(content))


def test_ranges_of_the_study_file_are_searched_and_train(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        {
            "pml:TripletMarginLoss": {"search": {"margin": [0.01, 1.0]}},
            "pml:ProxyAnchorLoss": {"search": {"alpha": [8, 64, "log"]}, "fixed": {"margin": 0.2}},
        },
    )
    assert list(plan.spaces["pml:TripletMarginLoss"].searched) == ["margin", "head_lr"]
    # It has proxies, so their rate is searched, too.
    searched = list(plan.spaces["pml:ProxyAnchorLoss"].searched)
    assert searched == ["alpha", "head_lr", "proxy_lr"]
    for loss in plan.losses:
        job = Job("t", loss, 0, "sobol", plan.example(loss), seed=0)
        spec = plan.trial_spec(job, cache_dir=tmp_path, checkpoint_dir="")
        bench = open_bench(spec.dataset, spec.backbone, cache_dir=tmp_path)
        assert 0.0 < Training(spec, bench).run_epoch()["score"] <= 1.0


def test_an_unknown_knob_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="unknown knob 'margn'; did you mean 'margin'"):
        plan_of(tmp_path, {"pml:TripletMarginLoss": {"search": {"margn": [0.01, 1.0]}}})
