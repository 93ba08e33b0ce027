"""Tests of `study stop`: a running process, and a study that does not run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from study.cli.main import main
from study.config.plan import save_plan
from tests.support.command_line import RunCommand
from tests.support.scheduler_simulation import make_plan

pytestmark = pytest.mark.split

HOLD_LOCK = """
import signal, sys, time
from pathlib import Path
from study.directory import StudyDirectory
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with StudyDirectory(Path(sys.argv[1])).hold_lock():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_study_that_does_not_run_is_refused(study: RunCommand, unfinished_study: Path) -> None:
    done = study("stop", "s")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "not running" in done.err


def test_the_process_of_the_study_is_stopped(study: RunCommand, unfinished_study: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(unfinished_study)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        done = study("stop", "s")
        assert done.code == 0, done.err
        assert "study resume s" in done.out
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_running_study_is_stopped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan()
    study_dir = tmp_path / "s"
    study_dir.mkdir()
    save_plan(plan, study_dir)
    code = (
        "import sys, time; from pathlib import Path; from study.directory import StudyDirectory\n"
        "with StudyDirectory(Path(sys.argv[1])).hold_lock():\n    print('held', flush=True)\n"
        "    time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(study_dir)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    started = time.monotonic()
    with pytest.raises(SystemExit) as done:
        main(["stop", "s", "--root", str(tmp_path)])
    assert done.value.code == 0
    assert holder.wait(timeout=10) == -15
    assert time.monotonic() - started < 30
    with pytest.raises(SystemExit) as again:
        main(["stop", "s", "--root", str(tmp_path)])
    assert again.value.code == 2
