"""Tests of Ray's autoscaler with a real study: nodes start in one step and stop at its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.autoscaling_cluster import (
    MAX_WORKERS,
    find_marked_processes,
    run_in_process,
    start_program,
)

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("hosts")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> dict[str, Any]:
    return run_in_process(tmp_path_factory.mktemp("head"))


def test_all_usable_nodes_start_at_once_and_stop_at_the_end(results: dict[str, Any]) -> None:
    autoscaled = results["autoscaled"]
    assert autoscaled["before"] == 0
    assert autoscaled["finished"]
    assert autoscaled["failed"] == 0
    assert max(count for _, count in autoscaled["worker_counts"]) == MAX_WORKERS
    assert autoscaled["launch_steps"] == [MAX_WORKERS], "the autoscaler starts them in one step"
    assert autoscaled["after"] == 0, "all workers have stopped"


def test_a_trial_that_fits_no_node_is_rejected_in_one_line(results: dict[str, Any]) -> None:
    oversized = results["oversized"]
    assert oversized["code"] == 2
    (line,) = [line for line in oversized["output"].splitlines() if line.startswith("study: ")]
    assert "a trial needs 1 node with {CPU: 8}" in line
    assert f"{MAX_WORKERS} nodes with {{CPU: 1}}" in line
    assert not oversized["is_created"]


def test_only_demands_of_running_studies_are_combined(results: dict[str, Any]) -> None:
    assert results["demands"] == {"both": [1, 2], "alone": [1], "none": 0}


def test_no_process_of_an_interrupted_cluster_remains(tmp_path: Path) -> None:
    """A busy machine may interrupt the cluster before it stops by itself."""
    marker, deadline = str(tmp_path), time.monotonic() + 120
    with start_program(tmp_path):
        while not any(map(is_agent, processes := find_marked_processes(marker))):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert not find_marked_processes(marker)
    assert not [process for process in processes if process.is_running()]


def is_agent(process: psutil.Process) -> bool:
    """Return whether this is a child of a raylet, the last kind of process to start."""
    try:
        return str(process.cmdline()[0]).startswith("ray::")
    except (psutil.Error, IndexError):
        return False
