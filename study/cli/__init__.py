"""One file per command of `study`."""
