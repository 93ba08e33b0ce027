"""Losses of pytorch-metric-learning are planned and trained like the built-in ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from study.config.loader import parse_config
from study.config.plan import Plan
from study.config.planner import build_plan
from study.errors import StudyError
from study.trials.job import Job
from tests.support.running_studies import write_features
from trainables.training.context import open_context
from trainables.training.trial_trainer import TrialTrainer

pytest.importorskip("pytorch_metric_learning", reason="the extra `pml` is not installed")


def plan_of(folder: Path, losses: dict[str, Any]) -> Plan:
    content = {
        "name": "library",
        "data": {"name": "arrays", "path": str(write_features(folder))},
        "losses": losses,
        "training": {"epochs": 2, "batch_size": 32, "embedding_dim": 16},
    }
    return build_plan(parse_config(content))


@pytest.mark.slow
def test_ranges_of_the_study_file_are_searched_and_train(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        {
            "pml:TripletMarginLoss": {"search": {"margin": [0.01, 1.0]}},
            "pml:ProxyAnchorLoss": {"search": {"alpha": [8, 64, "log"]}, "fixed": {"margin": 0.2}},
        },
    )
    assert list(plan.spaces["pml:TripletMarginLoss"].searched_params) == ["margin", "head_lr"]
    # It has proxies, so their learning rate is searched as well.
    searched = list(plan.spaces["pml:ProxyAnchorLoss"].searched_params)
    assert searched == ["alpha", "head_lr", "proxy_lr"]
    for loss in plan.losses:
        job = Job("t", loss, 0, "sobol", plan.example_point(loss), seed=0)
        spec = plan.build_trial_spec(job, cache_dir=tmp_path, checkpoint_dir="")
        context = open_context(spec.dataset, spec.backbone, cache_dir=tmp_path)
        assert 0.0 < TrialTrainer(spec, context).run_epoch()["score"] <= 1.0


def test_an_unknown_hyperparameter_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="unknown hyperparameter 'margn'; did you mean 'margin'"):
        plan_of(tmp_path, {"pml:TripletMarginLoss": {"search": {"margn": [0.01, 1.0]}}})
