"""The registry of analyses names every analysis and imports none of them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import study.analyses
from study.analyses import ANALYSES, Analysis

pytestmark = pytest.mark.split

HELPERS = {
    "findings",
    "intervals",
    "loss_model",
    "range_cost",
    "sweep_posterior",
    "claims.by_model",
    "claims.by_sweep",
    "claims.by_trials",
    "claims.values",
    "claims.verdict",
}
"""Modules that are no analyses themselves; those of the surrogate package are not either."""


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_exists_and_answers_a_question(name: str) -> None:
    analysis: Analysis = ANALYSES[name]
    assert analysis.question.endswith("?")
    module, function = analysis.function.split(":")
    found = getattr(importlib.import_module(module), function)
    assert callable(found)
    assert found.__doc__


def test_every_module_is_an_analysis_or_a_helper() -> None:
    root = Path(study.analyses.__file__).parent
    modules = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if path.stem != "__init__" and "surrogate" not in path.parts
    }
    named = {
        analysis.function.split(":")[0].removeprefix("study.analyses.")
        for analysis in ANALYSES.values()
    }
    assert modules - named == HELPERS


def test_the_registry_imports_nothing_heavy() -> None:
    code = (
        "import sys, study.analyses\n"
        "print(sorted({'numpy', 'pandas', 'scipy', 'sklearn', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
