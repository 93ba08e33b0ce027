"""Ray's own autoscaler and a real study: nodes come in one step, and go at its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.study.autoscaled import WORKERS, in_a_process, marked, started

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> dict[str, Any]:
    return in_a_process(tmp_path_factory.mktemp("head"))


def test_the_nodes_a_study_can_use_come_at_once_and_go_at_its_end(found: dict[str, Any]) -> None:
    grown = found["grown"]
    assert grown["before"] == 0
    assert grown["finished"]
    assert grown["failed"] == 0
    assert max(count for _, count in grown["alive"]) == WORKERS
    assert grown["launched"] == [WORKERS], "the autoscaler starts them in one step"
    assert grown["after"] == 0, "none is left"


def test_a_trial_that_fits_no_node_is_refused_in_one_line(found: dict[str, Any]) -> None:
    refused = found["refused"]
    assert refused["code"] == 2
    (line,) = [line for line in refused["output"].splitlines() if line.startswith("study: ")]
    assert "a trial needs 1 node(s) with CPU 8 each" in line
    assert f"may grow to 1 with CPU 0; {WORKERS} with CPU 1" in line or (
        f"may grow to {WORKERS} with CPU 1" in line
    )
    assert not refused["left"], "no study was made"


def test_studies_see_each_other_and_the_dead_want_nothing(found: dict[str, Any]) -> None:
    assert found["shared"] == {"both": [1, 2], "alone": [1], "none": 0}


def test_nothing_is_left_of_a_cluster_that_is_broken_off(tmp_path: Path) -> None:
    """As when the machine is too busy for it to end in time."""
    mark, deadline = str(tmp_path), time.monotonic() + 120
    with started(tmp_path):
        while not any(map(is_agent, there := marked(mark))):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert not marked(mark)
    assert not [process for process in there if process.is_running()]


def is_agent(process: psutil.Process) -> bool:
    """Whether this is the last kind to come: a child of a raylet."""
    try:
        return str(process.cmdline()[0]).startswith("ray::")
    except (psutil.Error, IndexError):
        return False
