"""The journal file survives incomplete lines and failed writes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from study.search.journal_file import JournalFile, truncate_torn_line
from tests.support.scheduler_simulation import (
    load_optuna_study,
    make_plan,
    open_scheduler,
    simulate_trials,
)


def test_a_writer_removes_an_incomplete_last_line(tmp_path: Path) -> None:
    """A power cut or a full disk may leave half a line; complete lines are kept."""
    plan = make_plan(losses=["triplet"], search={"trials": 6, "repeats": 1})
    simulate_trials(open_scheduler(plan, tmp_path), slots=1, crash_after=20)
    journal = tmp_path / "optuna.journal"
    complete = journal.read_bytes()
    journal.write_bytes(complete + complete.splitlines()[-1][:17])
    jobs = simulate_trials(open_scheduler(plan, tmp_path), slots=1)
    assert jobs
    study = load_optuna_study(tmp_path, "triplet")
    assert len(study.trials) == 6
    assert all(t.state.is_finished() for t in study.trials)


def test_operations_are_read_from_a_number_on(tmp_path: Path) -> None:
    writer = JournalFile(tmp_path / "journal")
    writer.append_logs([{"n": 0}, {"n": 1}])
    reader = JournalFile(tmp_path / "journal")
    assert list(reader.read_logs(1)) == [{"n": 1}]
    writer.append_logs([{"n": 2}])
    assert list(reader.read_logs(2)) == [{"n": 2}]
    assert list(reader.read_logs(0)) == [{"n": 0}, {"n": 1}, {"n": 2}], "from the start again"


def test_a_reader_skips_a_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"n":0}\n{"n"')
    reader = JournalFile(path)
    assert list(reader.read_logs(0)) == [{"n": 0}]
    with path.open("ab") as file:
        file.write(b":1}\n")
    assert list(reader.read_logs(1)) == [{"n": 1}]


def test_a_failed_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalFile(tmp_path / "journal")
    journal.append_logs([{"n": 0}])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("study.search.journal_file.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            journal.append_logs([{"n": 1}, {"n": 2}])
    journal.append_logs([{"n": 3}])
    assert (tmp_path / "journal").read_bytes() == b'{"n":0}\n{"n":3}\n'


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (b"{}", b""),
        (b"{}\n", b"{}\n"),
        (b"{}\n{}\n{", b"{}\n{}\n"),
        (b"{}\n" + b"x" * 200_000, b"{}\n"),
        (b"x" * 200_000, b""),
    ],
    ids=["empty", "one incomplete", "complete", "incomplete", "long incomplete", "only long"],
)
def test_only_an_incomplete_last_line_is_truncated(
    tmp_path: Path, content: bytes, kept: bytes
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    truncate_torn_line(path)
    assert path.read_bytes() == kept


def test_a_missing_journal_is_not_created_by_truncation(tmp_path: Path) -> None:
    truncate_torn_line(tmp_path / "journal")
    assert not (tmp_path / "journal").exists()
