"""Networks: backbones, pretrained weights, the embedding model, and cached features."""
