"""Tests of trials with several ranks on a real cluster: results, recovery, freed resources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from study.directory import StudyDirectory
from tests.support.rank_cluster import run_in_process
from tests.support.running_studies import check_complete
from trainables.training.checkpoints import load_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("hosts")]
NO_RESOURCES = {"actors": 0, "groups": 0, "processes": 0, "missing": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def results(folder: Path, data_cache: Path) -> dict[str, Any]:
    return run_in_process(folder)


def test_a_dead_rank_and_failing_points_are_handled(results: dict[str, Any], folder: Path) -> None:
    failures = results["failures"]
    assert failures["finished"]
    assert failures["killed"] == 1
    trials = check_complete(StudyDirectory(folder / "studies" / "failures"))
    huge = trials["knob.embedding_dim"] == 2**40
    assert huge.any()
    assert (trials[huge]["state"] == "failed").all()
    assert set(trials[~huge]["state"]) == {"finished", "stopped"}
    assert not huge.all()


def test_ranks_run_side_by_side_and_are_reused(results: dict[str, Any], folder: Path) -> None:
    failures = results["failures"]
    assert 2 < failures["ranks"] <= 4, "two trials at once, with two ranks each"
    trials = check_complete(StudyDirectory(folder / "studies" / "failures"))
    n_failures = int((trials["state"] == "failed").sum()) + failures["killed"]
    assert 4 + 2 * n_failures < 2 * len(trials), "otherwise reuse would not be visible"
    assert failures["rank_processes"] <= 4 + 2 * n_failures, "only failures start new ranks"


def test_pruned_failed_and_killed_trials_free_every_rank_and_gpu(results: dict[str, Any]) -> None:
    assert results["failures"]["held"] == NO_RESOURCES
    assert results["two_nodes"]["held"] == NO_RESOURCES


def test_a_trial_spans_nodes_on_request(results: dict[str, Any], folder: Path) -> None:
    two_nodes = results["two_nodes"]
    assert two_nodes["finished"]
    assert (two_nodes["ranks"], two_nodes["nodes"]) == (4, 2)
    study_dir = StudyDirectory(folder / "studies" / "two_nodes")
    trials = check_complete(study_dir)
    assert (trials["state"] == "finished").all()
    kept = [path.stem for path in study_dir.checkpoints_dir.iterdir()]
    assert len(kept) == 1, "the nodes share the study directory, so its best checkpoint is kept"
    assert kept[0] in set(trials["trial"])


def test_trials_share_a_gpu(results: dict[str, Any], folder: Path) -> None:
    shared_gpu = results["shared_gpu"]
    assert shared_gpu["finished"]
    assert (shared_gpu["trials"], shared_gpu["gpus"]) == (4, 1.0), "four trials use one GPU"
    assert shared_gpu["held"] == NO_RESOURCES
    trials = check_complete(StudyDirectory(folder / "studies" / "quarters"))
    assert (trials["state"] == "finished").all()


def test_killing_the_driver_frees_every_rank_and_gpu(results: dict[str, Any]) -> None:
    before = results["killed_driver"]["before"]
    assert before["processes"] >= 2
    assert before["missing"]["GPU"] >= 2.0
    assert results["killed_driver"]["held"] == NO_RESOURCES


def test_a_node_without_shared_storage_is_cleaned_and_the_best_are_copied(
    results: dict[str, Any], folder: Path
) -> None:
    found = results["no_shared_storage"]
    if found is None:
        pytest.skip("needs root to give a node its own directory")
    assert found["finished"]
    assert found["n_written"] == 6, "each trial wrote a checkpoint on the node"
    assert found["remaining"] == []
    study_dir = StudyDirectory(folder / "studies" / "no_shared_storage")
    trials = check_complete(study_dir)
    best = trials.loc[trials.groupby("loss")["score"].idxmax()]["trial"]
    assert found["kept"] == sorted(f"{trial}.pt" for trial in best)
    for trial in best:
        payload = load_checkpoint(study_dir.checkpoints_dir, trial)
        assert payload is not None
        assert payload["epoch"] == 2
