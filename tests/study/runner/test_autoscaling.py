"""What a study asks an autoscaling cluster for, what lost nodes cost it, and what all costs."""

from __future__ import annotations

from typing import Any

from study.config.schema import ResourcesSection
from study.runner.autoscaling import (
    DEMAND_UPDATE_SECONDS,
    AutoscalerClient,
    ResourceDemand,
    combine_demands,
    compute_demand,
    parse_possible_nodes,
)

FILE_OF_CLUSTER = {
    "max_workers": 4,
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 0}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 8, "GPU": 2}},
    },
}


class MemoryDemandStore:
    """Demands in memory; each study has its own view of them."""

    def __init__(self, notes: dict[str, ResourceDemand], study: str) -> None:
        self.notes, self.study = notes, study

    def publish_demand(self, demand: ResourceDemand | None) -> None:
        self.notes.pop(self.study, None)
        if demand is not None:
            self.notes[self.study] = demand

    def list_demands(self) -> list[ResourceDemand]:
        return [self.notes[study] for study in sorted(self.notes)]


def test_all_nodes_are_asked_for_at_once_and_let_go() -> None:
    nodes = parse_possible_nodes(FILE_OF_CLUSTER)
    assert len(nodes) == 5
    resources = ResourcesSection(gpus_per_trial=1, cpus_per_trial=2)
    asked: list[int] = []
    now = [0.0]
    left = iter((100, 100, 60, 3, 2))
    client = AutoscalerClient(
        resources,
        nodes,
        MemoryDemandStore({}, "a"),
        lambda b: asked.append(len(b)),
        count_trials_left=lambda: next(left),
        clock=lambda: now[0],
    )
    for _ in range(5):
        client.update()
        now[0] += DEMAND_UPDATE_SECONDS
    client.close()
    client.close()
    assert asked == [8, 3, 2, 0]


def test_studies_of_one_cluster_ask_for_the_sum_and_keep_what_the_other_wants() -> None:
    nodes, notes, asked = (
        parse_possible_nodes(FILE_OF_CLUSTER),
        dict[str, ResourceDemand](),
        list[Any](),
    )

    def open_client(study: str, trials_left: int, **resources: Any) -> AutoscalerClient:
        return AutoscalerClient(
            ResourcesSection(**resources),
            nodes,
            MemoryDemandStore(notes, study),
            asked.append,
            count_trials_left=lambda: trials_left,
        )

    a, b = open_client("a", 2, gpus_per_trial=1), open_client("b", 1, cpus_per_trial=8)
    a.update()
    b.update()
    assert asked[-1] == [{"CPU": 1, "GPU": 1}, {"CPU": 8}, {"CPU": 1, "GPU": 1}]
    a.close()
    assert asked[-1] == [{"CPU": 8}], "the other study's nodes stay"
    b.close()
    assert asked[-1] == []


def test_studies_that_want_all_of_a_cluster_share_it_turn_by_turn() -> None:
    nodes = parse_possible_nodes(FILE_OF_CLUSTER)
    one, pair = (
        ResourceDemand({"CPU": 1, "GPU": 1}, 1, 100),
        ResourceDemand({"CPU": 1, "GPU": 2}, 2, 100),
    )
    assert combine_demands([one], nodes) == [one.bundle] * 8
    both = combine_demands([one, pair], nodes)
    assert both.count({"CPU": 1, "GPU": 2}) == 2
    assert both.count({"CPU": 1, "GPU": 1}) == 4
    assert combine_demands([one, ResourceDemand({"GPU": 3}, 1, 5)], nodes) == [one.bundle] * 8


def test_never_more_is_asked_than_the_cluster_can_have() -> None:
    nodes = [{"CPU": 8.0, "GPU": 4.0}] * 3

    def wanted(resources: ResourcesSection) -> list[dict[str, float]]:
        return combine_demands([compute_demand(resources, 50, nodes)], nodes)

    two = ResourcesSection(gpus_per_trial=4, ranks_per_trial=4, nodes_per_trial=2, cpus_per_trial=4)
    assert wanted(two) == [{"CPU": 2, "GPU": 2}] * 6
    few = ResourcesSection(gpus_per_trial=1, max_concurrent=2)
    assert wanted(few) == [{"CPU": 1, "GPU": 1}] * 2
    assert wanted(ResourcesSection(cpus_per_trial=9)) == []
