"""Names that laptop, head and cluster files share: paths, ports and environment variables."""

from __future__ import annotations

ENVIRONMENT_FILE = "~/.dml-study/env"
"""Shell environment of a node, written by the set-up commands of the cluster file."""

MLFLOW_PORT = 5000
"""Port of the MLflow server on the head, on loopback."""

TRACKING_VARIABLE = "DML_STUDY_TRACKING"
"""Variable with the tracking URI of studies whose file has none."""

CHECKPOINTS_VARIABLE = "DML_STUDY_CHECKPOINTS"
"""Variable with the shared checkpoint storage of studies whose file has none."""

SUPERVISOR_LOG = "~/.dml-study/HOST/keeper.log"
"""Log of a node's supervisor; HOST is the node's name."""

RUN_STAMP_PREFIX = "study-run "
"""Start of the line that names the run of a study, before its output."""
