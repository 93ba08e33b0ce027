"""Importers: studies made of trials that were run elsewhere.

Every reader (CSV, Optuna, Ray Tune) produces the same frame of trials and epochs, from which
`trial_frame` builds the trial table. Nothing here executes or unpickles its input: it reads CSV and
JSON text, YAML through `safe_load`, and Optuna's own storages.
"""

from study.importers.csv_file import CSV_COLUMNS, read_csv_trials
from study.importers.optuna_storage import read_optuna
from study.importers.space_file import SPACE_FILE_EXAMPLE, pick_space, read_spaces
from study.importers.tune_results import read_tune

__all__ = [
    "CSV_COLUMNS",
    "SPACE_FILE_EXAMPLE",
    "pick_space",
    "read_csv_trials",
    "read_optuna",
    "read_spaces",
    "read_tune",
]
