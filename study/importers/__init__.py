"""How do trials that were run elsewhere become a study of ours?

Nothing here executes or unpickles what it reads: CSV and JSON text, YAML by safe_load, and Optuna's
own storages.
"""

from study.importing.csv_trials import CSV_COLUMNS, read_csv_trials
from study.importing.optuna_log import read_optuna
from study.importing.space_file import EXAMPLE, pick_space, read_spaces
from study.importing.tune_log import read_tune

__all__ = [
    "CSV_COLUMNS",
    "EXAMPLE",
    "pick_space",
    "read_csv_trials",
    "read_optuna",
    "read_spaces",
    "read_tune",
]
