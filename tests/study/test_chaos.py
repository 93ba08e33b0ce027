"""Kill a random process of a study every few seconds until it ends.

In the suite a small study; `make chaos` runs the long one (60 trials, DML_STUDY_CHAOS=long).
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from study.home import StudyHome
from tests.study.driven import check_complete, launch, recorded, write_study

pytestmark = pytest.mark.ray
LONG = os.environ.get("DML_STUDY_CHAOS") == "long"


def victims(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The driver, its trials, Ray's own processes, the shipper of records: all of the study."""
    with contextlib.suppress(psutil.Error):
        driver = psutil.Process(process.pid)
        return [driver, *driver.children(recursive=True)]
    return []


def hurt(process: subprocess.Popen[str], rng: random.Random) -> str:
    """Kill one of them; gives its name."""
    found = victims(process)
    if not found:
        return ""
    victim = rng.choice(found)
    with contextlib.suppress(psutil.Error):
        name = str(victim.name())
        victim.kill()
        return name
    return ""


def clear(process: subprocess.Popen[str], family: list[psutil.Process]) -> None:
    """End what a dead driver left behind."""
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    process.wait()


def test_nothing_is_lost_and_nothing_is_double(
    tmp_path: Path, data_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials, kills, pause = (30, 40, (2.0, 8.0)) if LONG else (6, 3, (4.0, 9.0))
    file = write_study(
        tmp_path,
        search={"trials": trials, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    )
    rng = random.Random(7)
    home = StudyHome(tmp_path / "studies" / "s")
    command = ["run", str(file)]
    killed: list[str] = []
    done_before: dict[str, str] = {}
    deadline = time.monotonic() + (3600 if LONG else 500)
    while True:
        assert time.monotonic() < deadline, f"not done after {killed}"
        process = launch(tmp_path / "studies", *command)
        family: list[psutil.Process] = []
        while process.poll() is None and len(killed) < kills:
            time.sleep(rng.uniform(*pause))
            family = victims(process) or family
            if home.directory.exists() and (home.directory / "optuna.journal").exists():
                killed.append(hurt(process, rng))
            if process.poll() is None and psutil.Process(process.pid).status() == "zombie":
                break
        # Whatever was not the driver may leave it waiting for ever: give it time, then cut power.
        try:
            output, _ = process.communicate(timeout=240 if len(killed) >= kills else 90)
        except subprocess.TimeoutExpired:
            output = "cut"
        clear(process, family)
        check_states(home, done_before)
        if process.returncode == 0:
            break
        if home.directory.exists():
            command = ["resume", "s"]
    with capsys.disabled():
        print(f"\n  killed {', '.join(killed)}")
    trials_frame = check_complete(home)
    assert len(killed) >= kills
    assert set(trials_frame["state"]) <= {"finished", "stopped"}
    assert output


def check_states(home: StudyHome, done_before: dict[str, str]) -> None:
    """A trial that has ended stays as it ended, whatever dies later."""
    if not (home.directory / "plan.json").exists():
        return
    now = recorded(home)
    assert now["trial"].is_unique
    states = dict(zip(now["trial"], now["state"], strict=True))
    for trial, state in done_before.items():
        assert states[trial] == state
    done_before.update({t: s for t, s in states.items() if s != "running"})
