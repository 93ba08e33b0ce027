"""Conv4: the shape of its features and its size."""

from __future__ import annotations

import pytest
import torch

from trainables.models.conv4 import Conv4Net

pytestmark = pytest.mark.split


@pytest.mark.parametrize(("channels", "size", "side"), [(1, 28, 3), (3, 64, 8)])
def test_three_poolings_reduce_the_resolution(channels: int, size: int, side: int) -> None:
    network = Conv4Net(in_chans=channels)
    features = network(torch.zeros(2, channels, size, size))
    assert features.shape == (2, network.num_features, side, side)
    assert network.num_features == 128


def test_a_classifier_is_rejected() -> None:
    with pytest.raises(ValueError, match="num_classes"):
        Conv4Net(num_classes=10)
    assert sum(p.numel() for p in Conv4Net().parameters()) < 110_000
