"""One file per figure: analysis frames in, charts out."""
