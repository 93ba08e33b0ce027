"""How one Tune run searches all losses of a study and tells Optuna the truth."""
