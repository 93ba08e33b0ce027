"""Fixtures of the report tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.analyses.findings import StudyFindings
from study.report.writer import write_findings


@pytest.fixture(scope="session")
def demo_report(demo_findings: StudyFindings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the report of the demo study; files that use it are in the group `demo`."""
    folder = tmp_path_factory.mktemp("report")
    write_findings(demo_findings, folder)
    return folder
