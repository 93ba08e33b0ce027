"""Pure functions from a trial table to tables of results."""
