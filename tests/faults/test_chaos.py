"""Kill a random process of a study every few seconds until it ends.

In the suite a small study and a few kills; `make chaos` runs the long one (60 trials,
DML_STUDY_CHAOS=long). Nothing but the next kill may end what a kill has left hanging: silence is
an error, and so is a process that outlives its study.
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

from study.home import StudyHome
from study.tuning.session import START_SECONDS
from tests.study.driven import (
    check_complete,
    check_machines,
    check_suggestions,
    family,
    launch,
    recorded,
    write_study,
)

pytestmark = pytest.mark.ray
LONG = os.environ.get("DML_STUDY_CHAOS") == "long"

TRIALS, LEAST_KILLS, PAUSE = (30, 25, (2.0, 6.0)) if LONG else (5, 3, (3.0, 7.0))
"""Trials of each of two losses."""
EPOCHS = 16 if LONG else 4
LIMIT_SECONDS = 1800.0 if LONG else 480.0
PEACE_SECONDS = math.inf if LONG else 60.0
"""After this long nobody is killed any more: on a slow machine the suite must end, too."""
SILENCE_SECONDS = START_SECONDS + 30.0
"""A study that writes nothing for so long hangs: it gives up a Ray that does not start earlier."""


class FairClock:
    """Seconds, fewer of them while others keep the cores from us: waiting for them is no hang."""

    def __init__(self) -> None:
        self.seconds, self._last, self._share = 0.0, time.monotonic(), 1.0

    def tick(self) -> float:
        """To be called often; gives the seconds so far."""
        wall, cpu = time.perf_counter(), time.thread_time()
        while time.thread_time() - cpu < 0.004:
            pass
        share = 0.004 / max(time.perf_counter() - wall, 0.004)
        self._share += 0.05 * (share - self._share)
        now = time.monotonic()
        # A study's own processes share two cores with us: a quarter of one is what we can expect.
        self.seconds += (now - self._last) * min(1.0, 4 * self._share)
        self._last = now
        return self.seconds


class Chaos:
    """One study, started again and again, and whoever strikes it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.home = root, StudyHome(root / "s")
        self.rng = random.Random(seed)
        self.started, self.clock = time.monotonic(), FairClock()
        self.killed: list[str] = []
        self.left: list[str] = []

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command to its end, killing; gives its exit code and its last words."""
        process = launch(self.root, *command)
        pulse, beat, relatives = self._pulse(), self.clock.tick(), family(process)
        journal, strike = self._journal(), beat + self.rng.uniform(*PAUSE)
        while process.poll() is None:
            time.sleep(0.1)
            now = self.clock.tick()
            if self._pulse() != pulse:
                pulse, beat = self._pulse(), now
            assert now - beat < SILENCE_SECONDS, f"it hangs after {self.killed[-3:]}"
            assert now < LIMIT_SECONDS, f"not done after {self.killed}"
            if now >= strike:
                strike = now + self.rng.uniform(*PAUSE)
                relatives = family(process) or relatives
                if self._may_kill(awake=self._journal() != journal):
                    self._kill(relatives)
        self._bury(relatives)
        return process.returncode, process.stdout.read() if process.stdout else ""

    def _pulse(self) -> tuple[int, ...]:
        """What changes when a study does something: its lock, its journal, its spool, its store."""
        times = []
        for path in (*self.home.directory.glob("*"), *self.home.spool.glob("*")):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime_ns)
        return tuple(times)

    def _journal(self) -> int:
        path = self.home.directory / "optuna.journal"
        return path.stat().st_size if path.exists() else 0

    def _may_kill(self, *, awake: bool) -> bool:
        """Mostly while trials run: whoever kills every start never sees a study."""
        if self.clock.seconds > PEACE_SECONDS:
            return False
        if not LONG and len(self.killed) >= LEAST_KILLS:
            return False
        return awake or self.rng.random() < 0.25

    def _kill(self, relatives: list[psutil.Process]) -> None:
        victim = self.rng.choice(relatives)
        with contextlib.suppress(psutil.Error):
            name = " ".join(victim.cmdline()[:3])[-40:] or victim.name()
            victim.kill()
            self.killed.append(name)

    def _bury(self, relatives: list[psutil.Process]) -> None:
        """A dead driver's processes end by themselves."""
        alive, end = relatives, self.clock.tick() + 40
        while alive and self.clock.tick() < end:
            _, alive = psutil.wait_procs(alive, timeout=0.5)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                name = " ".join(process.cmdline()[:3])
                # Ray's agents stay when their raylet is killed before they have looked for it.
                if "Agent" not in name:
                    self.left.append(name)
                process.kill()


def test_nothing_is_lost_and_nothing_is_double(
    tmp_path: Path, data_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = {"grace_epochs": 1, "reduction": 2}
    file = write_study(
        tmp_path,
        training={"epochs": EPOCHS, "batch_size": 32, "embedding_dim": 16},
        search={"trials": TRIALS, "repeats": 2, "stop_early": stop},
    )
    chaos = Chaos(tmp_path / "studies", seed=7)
    command, starts = ["run", str(file), "--no-report"], 0
    done_before: dict[str, str] = {}
    while True:
        code, words = chaos.run(*command)
        starts += 1
        check_states(chaos.home, done_before)
        assert "Traceback" not in words, words[-3000:]
        if code == 0:
            break
        if chaos.home.directory.exists():
            command = ["resume", "s", "--no-report"]
    with capsys.disabled():
        seconds = time.monotonic() - chaos.started
        print(f"\n  {len(chaos.killed)} killed, {starts} starts, {seconds:.0f} s:", end="")
        print("", *chaos.killed, sep="\n    ")
    trials = check_complete(chaos.home)
    check_machines(chaos.home)
    check_suggestions(chaos.home)
    assert not chaos.left, "outlived their study"
    assert len(chaos.killed) >= LEAST_KILLS
    assert set(trials["state"]) <= {"finished", "stopped"}


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


def test_a_hang_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above must not heal what it is to find."""
    monkeypatch.setattr("tests.study.test_chaos.SILENCE_SECONDS", 1.0)
    chaos = Chaos(tmp_path, seed=7)
    sleeper = subprocess.Popen(["sleep", "60"], text=True, stdout=subprocess.PIPE)
    monkeypatch.setattr("tests.study.test_chaos.launch", lambda *_: sleeper)
    monkeypatch.setattr(Chaos, "_may_kill", lambda self, awake: False)
    try:
        with pytest.raises(AssertionError, match="it hangs"):
            chaos.run("resume", "s")
    finally:
        sleeper.kill()
        sleeper.wait()
