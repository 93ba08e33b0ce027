"""Hyperparameter studies of deep-metric-learning losses.

The names in `__all__` are the public API; other modules are internal and may change::

    import study

    config = study.load_config("my.yaml", overrides=["search.trials=50"])
    plan = study.build_plan(config)                # checked; nothing is written
    summary = study.run(plan, root="studies")      # resumes the study if it exists
    table = study.load_table("my", root="studies") # trials, curves, spaces, protocol
    findings = study.analyse(table)                # what the report shows, as data frames
    study.write_report(findings, "report")

They are imported on first access, so that `study --help` is immediate.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from study.analyses.findings import LossFindings, StudyFindings
    from study.analyses.findings import analyse_study as analyse
    from study.analyses.surrogate.surrogate import Refusal
    from study.config.loader import load_config
    from study.config.plan import Plan
    from study.config.planner import build_plan
    from study.config.schema import StudyConfig
    from study.directory import StudyDirectory, find_study
    from study.errors import StudyError
    from study.importers.csv_file import read_csv_trials as import_csv
    from study.report.comparison import compare_reports
    from study.report.writer import write_findings as write_report
    from study.results import load_table
    from study.runner.run import RunOptions, RunSummary
    from study.runner.run_plan import run_plan as run
    from study.trials.table import TrialTable

__all__ = [
    "LossFindings",
    "Plan",
    "Refusal",
    "RunOptions",
    "RunSummary",
    "StudyConfig",
    "StudyDirectory",
    "StudyError",
    "StudyFindings",
    "TrialTable",
    "analyse",
    "build_plan",
    "compare_reports",
    "find_study",
    "import_csv",
    "load_config",
    "load_table",
    "run",
    "write_report",
]

_ORIGINS = {
    "LossFindings": "study.analyses.findings:LossFindings",
    "Plan": "study.config.plan:Plan",
    "Refusal": "study.analyses.surrogate.surrogate:Refusal",
    "RunOptions": "study.runner.run:RunOptions",
    "RunSummary": "study.runner.run:RunSummary",
    "StudyConfig": "study.config.schema:StudyConfig",
    "StudyDirectory": "study.directory:StudyDirectory",
    "StudyError": "study.errors:StudyError",
    "StudyFindings": "study.analyses.findings:StudyFindings",
    "TrialTable": "study.trials.table:TrialTable",
    "analyse": "study.analyses.findings:analyse_study",
    "build_plan": "study.config.planner:build_plan",
    "compare_reports": "study.report.comparison:compare_reports",
    "find_study": "study.directory:find_study",
    "import_csv": "study.importers.csv_file:read_csv_trials",
    "load_config": "study.config.loader:load_config",
    "load_table": "study.results:load_table",
    "run": "study.runner.run_plan:run_plan",
    "write_report": "study.report.writer:write_findings",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access (PEP 562)."""
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _ORIGINS[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the module, including those not imported yet."""
    return sorted({*globals(), *__all__})
