"""What a trial does: data, backbone, losses, training loop, retrieval metrics, ranks."""
