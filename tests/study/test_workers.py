"""Is shared work the same work, whatever becomes of the helpers?"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from study.analyses import findings
from study.analyses.findings import find
from study.report.answer import answer
from study.report.record import record
from study.workers import each
from tests.study import helped
from tests.study.demo import demo_problems
from tests.study.synthetic import Plan, make_table


def test_helpers_do_part_of_the_work_and_results_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our code: what lies in the folder we are called from has another's."""
    for name in ("study/__init__.py", "tests/__init__.py", "pickle.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    found = each(partial(helped.squared, os.getpid()), range(12), helpers=1)
    assert [square for square, _ in found] == [n * n for n in range(12)]
    assert {away for _, away in found} == {True, False}


def test_a_helper_that_dies_leaves_its_work_to_us() -> None:
    assert each(partial(helped.deadly, os.getpid()), range(5), helpers=2) == list(range(5))


def test_where_no_process_can_be_started_we_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = each(partial(helped.squared, os.getpid()), range(5), helpers=2)
    assert found == [(n * n, False) for n in range(5)]


def test_an_error_is_raised_here() -> None:
    with pytest.raises(ArithmeticError):
        each(partial(helped.failing, os.getpid()), range(3), helpers=1)


def test_findings_with_and_without_helpers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(demo_problems()[1:], Plan(trials=16))
    texts = []
    for least in (len(table.trials) + 1, 0):
        monkeypatch.setattr(findings, "WORTH_HELP", least)
        found = find(table, advised=1)
        texts.append(json.dumps(record(found, answer(found))))
    assert texts[0] == texts[1]
