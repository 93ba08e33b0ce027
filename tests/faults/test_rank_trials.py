"""Trials of several ranks on a real cluster: they end, survive, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from study.home import StudyHome
from tests.study.driven import check_complete
from tests.study.rank_cluster import in_a_process
from trainables.checkpoints import load_checkpoint

pytestmark = pytest.mark.ray
NOTHING = {"actors": 0, "groups": 0, "processes": 0, "missing": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def found(folder: Path, data_cache: Path) -> dict[str, Any]:
    return in_a_process(folder)


def test_a_dead_rank_and_failing_points_end_as_they_should(
    found: dict[str, Any], folder: Path
) -> None:
    hurt = found["many_ranks"]
    assert hurt["finished"]
    assert hurt["killed"] == 1
    trials = check_complete(StudyHome(folder / "studies" / "hurt"))
    huge = trials["knob.embedding_dim"] == 2**40
    assert huge.any()
    assert (trials[huge]["state"] == "failed").all()
    assert set(trials[~huge]["state"]) == {"finished", "stopped"}
    assert not huge.all()


def test_ranks_run_side_by_side_and_are_reused(found: dict[str, Any], folder: Path) -> None:
    hurt = found["many_ranks"]
    assert 2 < hurt["ranks"] <= 4, "two trials at once, with two ranks each"
    trials = check_complete(StudyHome(folder / "studies" / "hurt"))
    ended_badly = int((trials["state"] == "failed").sum()) + hurt["killed"]
    assert 4 + 2 * ended_badly < 2 * len(trials), "else reuse would not show"
    assert hurt["rank_processes"] <= 4 + 2 * ended_badly, "only failures cost new ranks"


def test_early_stop_error_and_death_free_every_rank_and_gpu(found: dict[str, Any]) -> None:
    assert found["many_ranks"]["held"] == NOTHING
    assert found["two_nodes"]["held"] == NOTHING


def test_a_trial_spans_nodes_when_asked(found: dict[str, Any], folder: Path) -> None:
    wide = found["two_nodes"]
    assert wide["finished"]
    assert (wide["ranks"], wide["nodes"]) == (4, 2)
    home = StudyHome(folder / "studies" / "wide")
    trials = check_complete(home)
    assert (trials["state"] == "finished").all()
    kept = [path.stem for path in home.checkpoints.iterdir()]
    assert len(kept) == 1, "the nodes share the study's folder: its best is not cleared away"
    assert kept[0] in set(trials["trial"])


def test_trials_share_a_gpu(found: dict[str, Any], folder: Path) -> None:
    parts = found["parts"]
    assert parts["finished"]
    assert (parts["trials"], parts["gpus"]) == (4, 1.0), "four trials on one GPU's worth"
    assert parts["held"] == NOTHING
    trials = check_complete(StudyHome(folder / "studies" / "quarters"))
    assert (trials["state"] == "finished").all()


def test_the_drivers_death_frees_every_rank_and_gpu(found: dict[str, Any]) -> None:
    before = found["dead_driver"]["before"]
    assert before["processes"] >= 2
    assert before["missing"]["GPU"] >= 2.0
    assert found["dead_driver"]["held"] == NOTHING


def test_a_node_that_shares_no_storage_is_tidied_and_the_best_come_home(
    found: dict[str, Any], folder: Path
) -> None:
    apart = found["node_apart"]
    if apart is None:
        pytest.skip("needs root, to give a node a folder of its own")
    assert apart["finished"]
    assert apart["there"] == 6, "each trial left one there"
    assert apart["left"] == []
    home = StudyHome(folder / "studies" / "apart")
    trials = check_complete(home)
    best = trials.loc[trials.groupby("loss")["score"].idxmax()]["trial"]
    assert apart["kept"] == sorted(f"{trial}.pt" for trial in best)
    for trial in best:
        payload = load_checkpoint(home.checkpoints, trial)
        assert payload is not None
        assert payload["epoch"] == 2
