"""Runs a plan on Ray: controller, Tune adapters, placement, and what follows a run."""
