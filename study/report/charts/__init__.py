"""Chart specification that is independent of the renderer, and its two renderers."""
