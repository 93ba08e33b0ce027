"""MLflow tracking: writing a study to a tracking store and reading it back."""

import os

# MLflow sends usage statistics unless this is set before its first import. What a study does is
# private to its owner; set the variable to "false" to send them.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
