"""Training of one trial: replicas, optimiser, evaluation and checkpoints."""
