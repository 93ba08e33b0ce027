"""Live report: rebuilds the report in a background process while a study runs.

`python -m study.runner.live_report NAME DIR` is that process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from study.config.plan import Plan
from study.directory import StudyDirectory
from study.runner.display import ProgressDisplay
from study.runner.publish import log_progress_note, log_report
from study.search.job_scheduler import JobScheduler
from study.tracking.tracker import Tracker
from study.utils.atomic_folder import report_lock, staging_path
from study.utils.redaction import redact
from study.utils.subprocesses import child_environment, python_command

_TRACKING_URI_VARIABLE = "DML_STUDY_STORE"


class LiveReport:
    """Rebuilds the report from time to time, in a process of low priority, and stores it.

    Args:
        study_dir: The study's directory, where the report goes.
        plan: The study.
        tracker: Stores the report and the progress note.
        scheduler: Knows the progress.
        display: Shows, once, why a report could not be made.
        interval_seconds: Least time between two reports; a slow report waits longer.
    """

    def __init__(
        self,
        study_dir: StudyDirectory,
        plan: Plan,
        tracker: Tracker,
        scheduler: JobScheduler,
        display: ProgressDisplay,
        *,
        interval_seconds: float,
    ) -> None:
        self._study_dir, self._plan, self._tracker = study_dir, plan, tracker
        self._scheduler, self._display = scheduler, display
        self._interval_seconds = interval_seconds
        self._error_file: IO[bytes] | None = None
        self._has_warned = False
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = time.monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether a report is being made or waits to be stored."""
        return self._process is not None

    def update(self) -> None:
        """Start a report when it is time; store the one that is ready."""
        elapsed = time.monotonic() - self._started_at
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            if code == 0:
                log_report(self._study_dir, self._plan, self._tracker)
                self._log_note()
            elif not self._has_warned:
                self._has_warned = True
                self._display.show_warning(
                    f"no report while the study runs: {self._last_error() or code}"
                )
            self._close_process()
            self._interval_seconds = max(self._interval_seconds, 20.0 * elapsed)
        elif elapsed >= self._interval_seconds:
            self._log_note()
            self._start_process()

    def _start_process(self) -> None:
        self._started_at = time.monotonic()
        self._error_file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _close_process)
        command = python_command("study.runner.live_report")
        self._process = subprocess.Popen(
            [*command, self._plan.name, str(self._study_dir.report_dir)],
            # Not on the command line, which every user of the machine can read.
            env=child_environment(
                **{_TRACKING_URI_VARIABLE: self._study_dir.tracking_uri(self._plan)}
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._error_file,
            start_new_session=True,
        )

    def _last_error(self) -> str:
        assert self._error_file is not None
        self._error_file.seek(0)
        lines = self._error_file.read().decode(errors="replace").strip().splitlines()
        return redact(lines[-1])[:300] if lines else ""

    def _close_process(self) -> None:
        if self._process is not None:  # it may have been killed half-way
            staging = staging_path(self._study_dir.report_dir, self._process.pid)
            shutil.rmtree(staging, ignore_errors=True)
        self._process = None
        if self._error_file is not None:
            self._error_file.close()

    def _log_note(self) -> None:
        log_progress_note(self._study_dir, self._plan, self._tracker, self._scheduler)

    def __enter__(self) -> LiveReport:
        return self

    def __exit__(self, *_: object) -> None:
        """End a report process that is still running."""
        if self._process is not None and self._process.poll() is None:
            with report_lock(self._study_dir.report_dir):  # not while it replaces the last report
                self._process.kill()
                self._process.wait()
        self._close_process()


def _write_report_quietly(name: str, out: str) -> None:
    from study.report.writer import write_report
    from study.tracking.reader import read_table

    os.nice(19)
    write_report(read_table(os.environ[_TRACKING_URI_VARIABLE], name), Path(out))


if __name__ == "__main__":
    _write_report_quietly(*sys.argv[1:3])
