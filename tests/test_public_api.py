"""Tests of the public API: names import and are documented, and packages import quickly."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.split

ROOT = Path(__file__).resolve().parents[1]
# Libraries that `import PACKAGE` must not import.
HEAVY_LIBRARIES = ("torch", "ray", "mlflow", "pandas", "scipy", "sklearn", "timm", "faiss")
UNWANTED_IMPORTS = {
    "study": (*HEAVY_LIBRARIES, "numpy", "optuna", "pydantic"),
    "trainables": (*HEAVY_LIBRARIES, "numpy", "optuna"),
    "search_spaces": HEAVY_LIBRARIES,
}
# Names that users and the README rely on; removing one breaks the public API.
STABLE_NAMES = {
    "study": {
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
    },
    "trainables": {
        "DATASETS",
        "LOSSES",
        "EmbeddingModel",
        "TrainingSettings",
        "TrialSpec",
        "TrialTrainer",
        "build_backbone",
        "build_loss",
        "evaluate",
        "load_dataset",
        "open_context",
    },
    "search_spaces": {
        "SPACES",
        "BetterLoss",
        "BetterValue",
        "Choice",
        "CostRatio",
        "FasterLoss",
        "Float",
        "GoodValue",
        "HigherMetric",
        "Hyperparameter",
        "Int",
        "PaperClaim",
        "PublishedPoint",
        "SearchSpace",
        "Sensitive",
        "StableRange",
        "get_space",
    },
}
PUBLIC_NAMES = [
    (package, name) for package in STABLE_NAMES for name in importlib.import_module(package).__all__
]


@pytest.mark.parametrize("package", STABLE_NAMES)
def test_stable_names_are_public(package: str) -> None:
    module = importlib.import_module(package)
    assert STABLE_NAMES[package] <= set(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize(("package", "name"), PUBLIC_NAMES)
def test_public_names_import_and_are_documented(package: str, name: str) -> None:
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.getdoc(value), f"{package}.{name} has no docstring"
        # A dataclass without a docstring gets its signature as one.
        assert not inspect.getdoc(value).startswith(f"{value.__name__}("), name  # type: ignore[union-attr]
    else:
        assert len(value) > 0, f"{package}.{name} is an empty registry"


@pytest.mark.parametrize("package", STABLE_NAMES)
def test_packages_are_documented(package: str) -> None:
    documentation = importlib.import_module(package).__doc__
    assert documentation is not None
    assert "`__all__`" in documentation, "which names are public"


@pytest.mark.parametrize("package", STABLE_NAMES)
def test_unknown_names_are_attribute_errors(package: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module(package).no_such_name  # noqa: B018


@pytest.mark.parametrize("package", UNWANTED_IMPORTS)
def test_importing_a_package_imports_no_heavy_library(package: str) -> None:
    """Checks which libraries are imported, because times depend on the machine."""
    unwanted = set(UNWANTED_IMPORTS[package])
    code = f"import sys, {package}; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_lazy_name_is_the_object_of_its_module() -> None:
    import trainables
    from trainables.config import TrialSpec
    from trainables.losses import LOSSES

    assert trainables.TrialSpec is TrialSpec
    assert trainables.LOSSES is LOSSES
