"""Temporary environment variables."""

from __future__ import annotations

import os

import pytest

from study.utils.environment import temporary_environment

pytestmark = pytest.mark.split


def test_existing_variables_are_kept_and_others_removed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DML_TEST_OWN", "mine")
    monkeypatch.delenv("DML_TEST_NEW", raising=False)

    def fail() -> None:
        with temporary_environment({"DML_TEST_OWN": "other", "DML_TEST_NEW": "new"}):
            assert (os.environ["DML_TEST_OWN"], os.environ["DML_TEST_NEW"]) == ("mine", "new")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert os.environ["DML_TEST_OWN"] == "mine"
    assert "DML_TEST_NEW" not in os.environ
