"""Command line of `study`: one module per command, and what the commands share."""
