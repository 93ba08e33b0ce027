"""Search strategy: which point to train next and which trials to stop, without Ray or MLflow."""
