"""Surrogate models: the score of a loss as a function of its hyperparameters and the epoch."""
