"""Ray actors that train trials: the Tune trainable, groups of ranks, and their workers."""
