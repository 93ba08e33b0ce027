"""Inputs of importers (space files, CSV files, Optuna storages) and checks of their tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
import pandas as pd

from study.trials.table import TRIAL_COLUMNS, TrialTable

ImportTrials = Callable[..., TrialTable]
"""Type of the fixture that runs `study import` and returns the table of its store."""

SPACE = """
objective: map_at_r
epochs: 27
dataset: elsewhere
untrained: 0.2
losses:
  mine:
    knobs:
      a: {low: 0.0, high: 1.0, symbol: α}
      b: {low: 0.0, high: 1.0}
      mode: {choices: [x, y]}
    nuisance: [b]
    published: {a: 0.5, b: 0.5, mode: x}
"""


def write_csv(folder: Path, text: str) -> Path:
    """Write a CSV file of trials and return its path."""
    path = folder / "trials.csv"
    path.write_text(text, "utf-8")
    return path


def make_optuna_study(
    folder: Path, objective: Callable[[optuna.Trial], float], trials: int
) -> tuple[str, optuna.Study]:
    """Run an Optuna study named `theirs`; return its storage's URL and the study."""
    url = f"sqlite:///{folder / 'log.db'}"
    study = optuna.create_study(study_name="theirs", storage=url, direction="maximize")
    study.optimize(objective, n_trials=trials, catch=(ArithmeticError,))
    return url, study


def get_curve(table: TrialTable, trial: str) -> dict[int, float]:
    """Return the scores of a trial by epoch."""
    curve = table.curves[table.curves["trial"] == trial]
    return dict(zip(curve["epoch"], curve["score"], strict=True))


def assert_same_trials(stored: TrialTable, imported: TrialTable) -> None:
    """Check that the store returns the columns that the importer filled."""
    columns = map(str, imported.trials.columns)
    names = [c for c in columns if c in TRIAL_COLUMNS or not c.startswith("knob.")]
    frames = [t.trials.set_index("trial").sort_index() for t in (stored, imported)]
    for name in names:
        if name != "trial":
            pd.testing.assert_series_equal(
                frames[0][name],
                frames[1][name],
                check_dtype=False,
                check_index_type=False,
                obj=name,
            )
