"""What laptop and head agree on: paths and settings of the nodes, as the cluster files set them."""

from __future__ import annotations

ENVIRONMENT_FILE = "~/.dml-study/env"
"""Shell settings of a node, written by the set-up commands of the cluster file."""

MLFLOW_PORT = 5000
"""Of the MLflow server on the head; on loopback."""

TRACKING_VARIABLE = "DML_STUDY_TRACKING"
"""Where studies of this cluster are tracked unless their file says otherwise."""

CHECKPOINTS_VARIABLE = "DML_STUDY_CHECKPOINTS"
"""Storage that all nodes share, for checkpoints, unless a study file says otherwise."""

KEEPER_LOG = "~/.dml-study/HOST/keeper.log"
"""Of what runs on a node besides Ray; HOST is the node's own name."""

STAMP = "study-run "
"""Begins the line that says which run of a study the output after it is of."""
