"""Block sizes: bounded whatever the numbers of items and candidates."""

from __future__ import annotations

import pytest

from trainables.retrieval import block_sizes

pytestmark = pytest.mark.split


def test_blocks_are_bounded_whatever_the_classes() -> None:
    short, long = (
        block_sizes.choose_block_rows(60_502, 60_502, 512, count) for count in (20, 30_251 + 8)
    )
    assert short == block_sizes.BLOCK_BYTES // (4 * 60_502)  # short lists are no restriction
    assert long * 30_259 * block_sizes.CANDIDATE_BYTES <= block_sizes.LIST_BYTES
    assert block_sizes.choose_block_rows(10**7, 10**7, 512, 5 * 10**6) == 1
    assert block_sizes.choose_block_rows(7, 100, 16, 5) == 7
