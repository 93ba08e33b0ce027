"""Results and errors are the same with and without helpers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from joblib.externals.loky import get_reusable_executor

from study.analyses import findings
from study.analyses.findings import analyse_study
from study.report.json_export import findings_to_json
from study.report.summary import summarise_findings
from study.utils.parallel import parallel_map
from tests.support import parallel_functions
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _new_helpers() -> Iterator[None]:
    """Helpers of one test do not serve the next one."""
    yield
    get_reusable_executor(max_workers=1).shutdown(kill_workers=True)


def test_helpers_do_part_of_the_work_and_results_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers run our code, not modules of the current directory."""
    for name in ("study/__init__.py", "tests/__init__.py", "pickle.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    found = parallel_map(
        partial(parallel_functions.square_number, os.getpid()), range(12), helpers=1
    )
    assert [square for square, _ in found] == [n * n for n in range(12)]
    assert {away for _, away in found} == {True, False}


def test_a_second_call_uses_the_same_helpers() -> None:
    first, second = (
        parallel_map(parallel_functions.get_process_id, range(8), helpers=1) for _ in "ab"
    )
    assert set(first) - {os.getpid()} == set(second) - {os.getpid()}
    assert len({*first, *second}) == 2


def test_without_helpers_this_process_does_all_the_work() -> None:
    assert parallel_map(parallel_functions.get_process_id, range(3), helpers=0) == [os.getpid()] * 3
    assert parallel_map(parallel_functions.get_process_id, [1], helpers=4) == [os.getpid()]
    assert parallel_map(parallel_functions.get_process_id, [], helpers=4) == []


def test_helpers_have_one_blas_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    threads = dict(parallel_map(parallel_functions.get_thread_limit, range(8), helpers=1))
    assert threads.pop(os.getpid()) == "5"
    assert list(threads.values()) == ["1"]


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """Helpers do not import the script again, whether it is run as a file or as a module."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from study.utils.parallel import parallel_map\n"
        "from tests.support.parallel_functions import get_process_id\n"
        "print('started', flush=True)\n"
        "print(len(set(parallel_map(get_process_id, range(6), helpers=1))))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for command in ([str(script)], ["-m", "script"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.stdout.split() == ["started", "2"], done.stderr


def test_an_interrupt_ends_the_helpers(tmp_path: Path) -> None:
    code = (
        "import signal\n"
        # A process in the background of a shell ignores interrupts, and its children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from study.utils.parallel import parallel_map\n"
        "from tests.support.parallel_functions import announce_and_sleep\n"
        f"parallel_map(announce_and_sleep, [{str(tmp_path)!r}] * 4, helpers=1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while len(pids := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in errors
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_items_of_a_helper_that_dies_are_computed_here() -> None:
    assert parallel_map(
        partial(parallel_functions.exit_in_helper, os.getpid()), range(5), helpers=2
    ) == list(range(5))


def test_without_processes_everything_is_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = parallel_map(
        partial(parallel_functions.square_number, os.getpid()), range(5), helpers=2
    )
    assert found == [(n * n, False) for n in range(5)]


def test_an_error_of_a_helper_is_raised_here() -> None:
    with pytest.raises(ArithmeticError):
        parallel_map(partial(parallel_functions.raise_error, os.getpid()), range(3), helpers=1)


def test_findings_with_and_without_helpers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(make_demo_problems()[1:], SyntheticPlan(trials=16))
    texts = []
    for least in (len(table.trials) + 1, 0):
        monkeypatch.setattr(findings, "MIN_TRIALS_FOR_HELPERS", least)
        found = analyse_study(table, n_suggestions=1)
        texts.append(json.dumps(findings_to_json(found, summarise_findings(found))))
    assert texts[0] == texts[1]
