"""Tests of `study claims`: a study whose losses have no claims."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import ImportedStudy, RunCommand

pytestmark = [pytest.mark.xdist_group("imported"), pytest.mark.slow]


def test_a_loss_without_claims(study: RunCommand, imported: ImportedStudy) -> None:
    root = str(imported.root)
    done = study("claims", "theirs", "--root", root)
    assert done.code == 0, done.err
    assert "no claims" in done.out
    nothing = study("claims", "theirs", "--settle", "--json", "--root", root)
    assert nothing.code == 0
    assert json.loads(nothing.out) == []
    assert "settled" in nothing.err
