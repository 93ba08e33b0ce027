"""Ranks of first hits behind the lists of neighbours: counted, with exact ties."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.retrieval_oracles import KINDS, make_embeddings, rank_items
from trainables.retrieval import first_hits
from trainables.retrieval.exact_order import MAX_PAIRWISE_TIES
from trainables.retrieval.first_hits import ClassMembers, rank_first_hits
from trainables.retrieval.neighbours import search_with_similarities
from trainables.retrieval.vectors import make_vector_set

pytestmark = pytest.mark.split


def test_members_of_a_class_ascend() -> None:
    members = ClassMembers(np.array([7, 3, 7, 2**40, 3]))
    assert members.items_of_class(7).tolist() == [0, 2]
    assert members.items_of_class(3).tolist() == [1, 4]
    assert members.items_of_class(2**40).tolist() == [3]


@pytest.mark.parametrize("max_pairs", [MAX_PAIRWISE_TIES, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_those_of_a_full_sort(
    kind: str, max_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_hits, "MAX_PAIRWISE_TIES", max_pairs)
    x, labels = make_embeddings(kind, 2)
    vectors, members = make_vector_set(x, "x"), ClassMembers(labels)
    counts = np.array([len(members.items_of_class(int(label))) for label in labels])
    (block,) = search_with_similarities(vectors, vectors, np.arange(len(x)), 1, exclude_self=True)
    queries = np.flatnonzero(counts > 1)
    ranks = rank_first_hits(block, queries, labels, vectors, vectors, members)
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    for query, rank in zip(queries, ranks, strict=True):
        order = rank_items(unit[query], unit)
        hits = labels[order[order != query]] == labels[query]
        assert rank == hits.argmax() + 1
