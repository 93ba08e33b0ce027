"""Values that cannot be trained are rejected before a study is created."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from study.config.feasibility import check_feasible
from study.config.loader import load_config
from study.config.planner import build_plan
from study.errors import StudyError
from tests.support.study_files import build_minimal_plan, write_study_file


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ("{proxy_anchor: {fixed: {pooling: median}}}", "avg, max, avg+max"),
        ("{proxy_anchor: {fixed: {batch_size: 2, images_per_class: 4}}}", "images_per_class"),
        ("{proxy_anchor: {search: {head_lr: [-1, 0.1]}}}", "`head_lr >= 0` must hold"),
        ("{proxy_anchor: {search: {head_lr: {choices: [-0.1, 0.1]}}}}", "`head_lr >= 0` must hold"),
        (
            "{proxy_anchor: {search: {head_lr: {choices: [x, y]}}}}",
            "`head_lr` must be of type float",
        ),
        ("{proxy_anchor: {search: {alpha: [-5, 5]}}}", "`alpha > 0` must hold"),
        ("{proxy_anchor: {search: {alpha: {choices: [x, y]}}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: abc}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: .nan}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: true}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: -5}}}", "`alpha > 0` must hold"),
        ("{proxy_anchor: {fixed: {head_lr: .nan}}}", "`head_lr` must be finite"),
        ("{proxy_anchor: {fixed: {augment: papre}}}", "did you mean 'papers'?"),
        ("{proxy_anchor: {search: {augment: {choices: [none, x]}}}}", "unknown `augment` 'x'"),
        (
            "{proxy_anchor: {fixed: {batch_size: 8}, search: {images_per_class: [2, 16]}}}",
            "images_per_class=16, batch_size=8",
        ),
    ],
)
def test_values_that_cannot_be_trained_are_named(losses: str, message: str, tmp_path: Path) -> None:
    path = write_study_file(tmp_path, f"name: s\ndata: glyphs\nlosses: {losses}\n")
    with pytest.raises(StudyError) as error:
        build_plan(load_config(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_end_of_a_range_is_part_of_the_message() -> None:
    with pytest.raises(StudyError, match=r"head_lr=-1.0 from its range"):
        build_minimal_plan({"losses": {"triplet": {"search": {"head_lr": [-1, 0.1]}}}})


def test_a_required_hyperparameter_needs_a_value_or_range() -> None:
    """Losses of pytorch-metric-learning have no published points and few defaults."""
    plan = build_minimal_plan({})
    space = replace(plan.spaces["triplet"], fixed={}, scientific={}, published=())
    incomplete = replace(plan, spaces={"triplet": space})
    with pytest.raises(StudyError, match="triplet: no value or range for margin"):
        check_feasible(incomplete, "triplet")


def test_the_largest_class_must_fit_the_smallest_batch() -> None:
    search = {"images_per_class": [2, 8], "batch_size": {"choices": [8, 64]}}
    build_minimal_plan({"losses": {"triplet": {"search": search}}})
    search = {"images_per_class": [2, 8], "batch_size": {"choices": [4, 64]}}
    with pytest.raises(StudyError, match="images_per_class=8, batch_size=4"):
        build_minimal_plan({"losses": {"triplet": {"search": search}}})
