"""Readers of data sets, one module per data set."""
