"""The plan splits points, counts trials, and survives the disk."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from study.config.plan import PLAN_FILE, Plan, load_plan, save_plan
from study.errors import StudyError
from study.trials.job import Job
from tests.support.study_files import build_minimal_plan


def test_a_point_is_split_into_settings_and_loss_arguments() -> None:
    plan = build_minimal_plan({"losses": {"proxy_anchor": {"fixed": {"pooling": "max"}}}})
    params = {**plan.example_point("proxy_anchor"), "alpha": 50.0, "proxy_lr": 0.5}
    settings, arguments = plan.resolve_settings("proxy_anchor", params)
    assert arguments["alpha"] == 50.0
    assert settings.proxy_lr == 0.5
    assert settings.pooling == "max"
    assert "alpha" not in vars(settings)


def test_search_trials_average_over_seeds_and_confirmations_do_not() -> None:
    """A repeat with a single seed would vary more than the point it repeats."""
    plan = build_minimal_plan({"search": {"seeds_per_point": 3}})
    jobs = [
        Job("t", "triplet", 0, origin, plan.example_point("triplet"), 0)
        for origin in ("published", "sobol", "bayes", "repeat", "sweep")
    ]
    jobs.append(replace(jobs[0], origin="confirm", split="test"))
    specs = [plan.build_trial_spec(job, cache_dir=Path("c"), checkpoint_dir="") for job in jobs]
    assert [spec.replicas for spec in specs] == [3, 3, 3, 3, 3, 1]


def test_a_saved_plan_is_loaded_unchanged(tmp_path: Path) -> None:
    plan = build_minimal_plan({}).with_extra_stage(5)
    save_plan(plan, tmp_path)
    assert load_plan(tmp_path) == plan


def test_a_plan_is_flushed_to_disk_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could leave an empty file in place of a valid plan."""
    events: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        events.append(f"on disk: {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        sync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        events.append("replaced")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    save_plan(build_minimal_plan({}), tmp_path)
    assert events == ["on disk: .plan.json.new", "replaced", f"on disk: {tmp_path.name}"]


@pytest.mark.parametrize("text", ["", "{", '{"file": {}}', '{"file": {"name": "a"}}'])
def test_a_damaged_plan_is_a_one_line_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(StudyError, match="damaged"):
        load_plan(tmp_path)


def test_budgets_are_equal_and_include_published_points() -> None:
    plan = build_minimal_plan({"search": {"trials": 20}})
    for loss in plan.losses:
        parts = [
            len(plan.published_points(loss)),
            plan.n_sobol_points(loss, 0),
            plan.n_sampler_points(loss, 0),
        ]
        assert sum(parts) == 20
        assert plan.n_sobol_points(loss, 0) == 8
    longer = plan.with_extra_stage(10)
    assert longer.n_sobol_points("triplet", 1) == 12
    assert longer.n_points == 30


def test_a_directory_without_a_plan_is_not_a_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"is not a study directory: no plan.json"):
        load_plan(tmp_path)


def test_the_file_of_a_plan_has_no_derived_data(tmp_path: Path) -> None:
    plan = build_minimal_plan({})
    plan.resolve_settings("triplet", plan.example_point("triplet"))
    save_plan(plan, tmp_path)
    content = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert content.keys() == {"file", "spaces", "stages", "study_id"}
    assert content["stages"] == [{"points": 30}]
    assert load_plan(tmp_path).study_id == plan.study_id != build_minimal_plan({}).study_id


def test_a_plan_of_an_earlier_version_has_no_id() -> None:
    content = build_minimal_plan({}).to_dict()
    del content["study_id"]
    assert Plan.from_dict(content).study_id == ""


def test_the_sampler_sobol_leaves_no_sampled_points() -> None:
    plan = build_minimal_plan({"search": {"trials": 20, "sampler": "sobol"}})
    for loss in plan.losses:
        assert plan.n_sampler_points(loss, 0) == 0
        assert plan.n_sobol_points(loss, 0) == 20 - len(plan.published_points(loss))


def test_repeats_are_counted() -> None:
    """One published point, a tenth of eight Sobol points and the incumbent, twice each."""
    plan = build_minimal_plan({"losses": ["triplet"], "search": {"trials": 20, "repeats": 3}})
    assert plan.n_repeated_sobol_points("triplet") == 1
    assert plan.max_trials("triplet") == 20 + 3 * 2
    assert plan.with_extra_stage(5).max_trials("triplet") == 25 + 4 * 2


def test_excluded_published_points_are_described() -> None:
    plan = build_minimal_plan({"losses": {"triplet": {"search": {"margin": [5.0, 6.0]}}}})
    assert plan.published_points("triplet") == []
    (line,) = plan.describe_excluded_points()
    assert line.startswith("triplet: ")
    assert 5.0 <= float(plan.example_point("triplet")["margin"]) <= 6.0


@pytest.mark.parametrize(
    ("uri", "is_private"),
    [
        ("postgresql://ada:s3cret@127.0.0.1:1/mlflow", True),
        ("http://127.0.0.1:5000", False),
    ],
)
def test_only_the_owner_may_read_a_plan_with_a_password(
    uri: str, is_private: bool, tmp_path: Path
) -> None:
    save_plan(build_minimal_plan({"losses": ["triplet"], "tracking": {"uri": uri}}), tmp_path)
    mode = (tmp_path / PLAN_FILE).stat().st_mode & 0o777
    assert (mode == 0o600) == is_private
