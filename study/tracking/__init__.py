"""MLflow as the study's home: writing it and reading it back."""

import os

# MLflow reports its use to its makers unless told not to, before it is first imported. What a study
# does is its owner's business; whoever wants to report sets the variable to "false".
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
