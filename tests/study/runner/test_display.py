"""Every display keeps the contract, and warnings are logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.cli.display import _BarDisplay, _LineDisplay
from study.runner.display import NullDisplay, ProgressDisplay
from study.runner.warning_log import WarningLogDisplay
from tests.support.displays import DisplayContract, RecordingDisplay, make_progress


class TestNullDisplay(DisplayContract):
    @pytest.fixture
    def display(self) -> ProgressDisplay:
        return NullDisplay()


class TestLineDisplay(DisplayContract):
    @pytest.fixture
    def display(self) -> ProgressDisplay:
        return _LineDisplay("s", every=0.0)


class TestBarDisplay(DisplayContract):
    @pytest.fixture
    def display(self) -> ProgressDisplay:
        return _BarDisplay("s")


class TestWarningLogDisplay(DisplayContract):
    @pytest.fixture
    def display(self, tmp_path: Path) -> ProgressDisplay:
        return WarningLogDisplay(NullDisplay(), tmp_path / "warnings.txt")

    def test_warnings_are_counted_shown_and_appended(self, tmp_path: Path) -> None:
        path, shown = tmp_path / "warnings.txt", RecordingDisplay()
        path.write_text("an earlier run\n", encoding="utf-8")
        display = WarningLogDisplay(shown, path)
        for text in ("first", "second"):
            display.show_warning(text)
        display.show_message("a message")
        display.show_build_progress("decoding", 1, 2)
        display.show_progress([make_progress()], {})
        assert (display.n_warnings, shown.warnings) == (2, ["first", "second"])
        assert (shown.messages, shown.builds) == (["a message"], [("decoding", 1, 2)])
        assert len(shown.progress) == 1
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0] == "an earlier run"
        assert [line.split(" ", 2)[2] for line in lines[1:]] == ["first", "second"]

    def test_a_disk_that_takes_no_warning_does_not_hide_it(self, tmp_path: Path) -> None:
        shown = RecordingDisplay()
        WarningLogDisplay(shown, tmp_path).show_warning("the disk is full")  # a folder, no file
        assert shown.warnings == ["the disk is full"]
