"""Hyperparameters that several losses share."""
