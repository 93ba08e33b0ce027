"""Tests that kill a random process of a study every few seconds until the study finishes.

The suite runs a small study with a few kills; `make chaos` runs the long one (60 trials,
DML_STUDY_CHAOS=long). A study that hangs is an error, as is a process that outlives its study.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from study.directory import StudyDirectory
from study.runner.ray_session import RAY_START_TIMEOUT_SECONDS
from tests.support.running_studies import (
    check_complete,
    check_suggestions,
    check_trial_histories,
    launch_command,
    list_process_tree,
    read_journal_rows,
    write_study,
)

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("processes")]
IS_LONG = os.environ.get("DML_STUDY_CHAOS") == "long"

TRIALS_PER_LOSS, MIN_KILLS, KILL_INTERVAL_SECONDS = (
    (30, 25, (2.0, 6.0)) if IS_LONG else (5, 3, (2.0, 4.0))
)
"""Trials of each of two losses, minimum number of kills, and seconds between kills."""
EPOCHS = 16 if IS_LONG else 160
"""Epochs take some hundredths of a second; the few trials must last for several kills."""
LIMIT_SECONDS = 1800.0 if IS_LONG else 480.0
KILL_LIMIT_SECONDS = math.inf if IS_LONG else 150.0
"""Time after which no process is killed, so that the suite finishes on a slow machine."""
SILENCE_SECONDS = RAY_START_TIMEOUT_SECONDS + 30.0
"""Time without any write after which a study counts as hanging; longer than Ray's start timeout."""


class FairClock:
    """Clock that runs more slowly while other programs occupy the cores."""

    def __init__(self) -> None:
        self.seconds, self._last, self._share = 0.0, time.monotonic(), 1.0

    def tick(self) -> float:
        """Update the clock and return its seconds; to be called often."""
        wall, cpu = time.perf_counter(), time.thread_time()
        while time.thread_time() - cpu < 0.004:
            pass
        share = 0.004 / max(time.perf_counter() - wall, 0.004)
        self._share += 0.05 * (share - self._share)
        now = time.monotonic()
        # The processes of the study share two cores with this one, so expect a quarter of a core.
        self.seconds += (now - self._last) * min(1.0, 4 * self._share)
        self._last = now
        return self.seconds


class ChaosRun:
    """Study that is restarted until it finishes while its processes are killed."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.study_dir = root, StudyDirectory(root / "s")
        self.rng = random.Random(seed)
        self.started, self.clock = time.monotonic(), FairClock()
        self.killed: list[str] = []
        self.survivors: list[str] = []

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command to its end with kills; return its exit code and output."""
        process = launch_command(self.root, *command)
        modified, last_change = self._read_modification_times(), self.clock.tick()
        processes, journal_size = list_process_tree(process), self._get_journal_size()
        next_kill = last_change + self.rng.uniform(*KILL_INTERVAL_SECONDS)
        while process.poll() is None:
            time.sleep(0.1)
            now = self.clock.tick()
            if self._read_modification_times() != modified:
                modified, last_change = self._read_modification_times(), now
            assert now - last_change < SILENCE_SECONDS, f"it hangs after {self.killed[-3:]}"
            assert now < LIMIT_SECONDS, f"not finished after {self.killed}"
            if now >= next_kill:
                next_kill = now + self.rng.uniform(*KILL_INTERVAL_SECONDS)
                processes = list_process_tree(process) or processes
                if self._may_kill(is_training=self._get_journal_size() != journal_size):
                    self._kill_random_process(processes)
        self._wait_for_end(processes)
        return process.returncode, process.stdout.read() if process.stdout else ""

    def _read_modification_times(self) -> tuple[int, ...]:
        """Return the modification times of the study's lock, journal, spool and store."""
        times = []
        for path in (*self.study_dir.path.glob("*"), *self.study_dir.spool_dir.glob("*")):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime_ns)
        return tuple(times)

    def _get_journal_size(self) -> int:
        path = self.study_dir.path / "optuna.journal"
        return path.stat().st_size if path.exists() else 0

    def _may_kill(self, *, is_training: bool) -> bool:
        """Return whether to kill a process now: always while trials run, else rarely."""
        if self.clock.seconds > KILL_LIMIT_SECONDS:
            return False
        if not IS_LONG and len(self.killed) >= MIN_KILLS:
            return False
        return is_training or self.rng.random() < 0.25

    def _kill_random_process(self, processes: list[psutil.Process]) -> None:
        process = self.rng.choice(processes)
        with contextlib.suppress(psutil.Error):
            name = " ".join(process.cmdline()[:3])[-40:] or process.name()
            process.kill()
            self.killed.append(name)

    def _wait_for_end(self, processes: list[psutil.Process]) -> None:
        """Wait until the processes of an ended driver have ended; store and kill the others."""
        alive, end = processes, self.clock.tick() + 40
        while alive and self.clock.tick() < end:
            _, alive = psutil.wait_procs(alive, timeout=0.5)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                name = " ".join(process.cmdline()[:3])
                # Ray's agents stay alive if their raylet is killed before they check for it.
                if "Agent" not in name:
                    self.survivors.append(name)
                process.kill()


def test_no_trial_is_lost_or_duplicated(
    tmp_path: Path, data_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = {"grace_epochs": 1, "reduction": 2}
    file = write_study(
        tmp_path,
        training={"epochs": EPOCHS, "batch_size": 32, "embedding_dim": 16},
        search={"trials": TRIALS_PER_LOSS, "repeats": 2, "stop_early": stop},
    )
    chaos = ChaosRun(tmp_path / "studies", seed=7)
    command, starts = ["run", str(file), "--no-report"], 0
    done_before: dict[str, str] = {}
    while True:
        code, output = chaos.run(*command)
        starts += 1
        check_states(chaos.study_dir, done_before)
        assert "Traceback" not in output, output[-3000:]
        if code == 0:
            break
        if chaos.study_dir.path.exists():
            command = ["resume", "s", "--no-report"]
    with capsys.disabled():
        seconds = time.monotonic() - chaos.started
        print(f"\n  {len(chaos.killed)} killed, {starts} starts, {seconds:.0f} s:", end="")
        print("", *chaos.killed, sep="\n    ")
    trials = check_complete(chaos.study_dir)
    check_trial_histories(chaos.study_dir)
    check_suggestions(chaos.study_dir)
    assert not chaos.survivors, "these processes outlived their study"
    assert len(chaos.killed) >= MIN_KILLS
    assert set(trials["state"]) <= {"finished", "stopped"}


def check_states(study_dir: StudyDirectory, done_before: dict[str, str]) -> None:
    """Check that ended trials keep their state after further kills."""
    if not (study_dir.path / "plan.json").exists():
        return
    now = read_journal_rows(study_dir)
    assert now["trial"].is_unique
    states = dict(zip(now["trial"], now["state"], strict=True))
    for trial, state in done_before.items():
        assert states[trial] == state
    done_before.update({t: s for t, s in states.items() if s != "running"})


def test_a_hang_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the kills of the test above could hide a hang."""
    monkeypatch.setattr("tests.faults.test_chaos.SILENCE_SECONDS", 1.0)
    chaos = ChaosRun(tmp_path, seed=7)
    sleeper = subprocess.Popen(["sleep", "60"], text=True, stdout=subprocess.PIPE)
    monkeypatch.setattr("tests.faults.test_chaos.launch_command", lambda *_: sleeper)
    monkeypatch.setattr(ChaosRun, "_may_kill", lambda self, is_training: False)
    try:
        with pytest.raises(AssertionError, match="it hangs"):
            chaos.run("resume", "s")
    finally:
        sleeper.kill()
        sleeper.wait()
