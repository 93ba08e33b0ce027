"""Process group of a multi-rank trial, and layers that synchronise across ranks."""
