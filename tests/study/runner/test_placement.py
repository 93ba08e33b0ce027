"""What a trial takes of the cluster, and how many trials that leaves room for."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.cluster.templates import render_onprem_file
from study.config.loader import parse_config
from study.config.planner import build_plan
from study.config.schema import ResourcesSection
from study.errors import StudyError
from study.runner import placement
from study.runner.autoscaling import possible_nodes_or_none
from study.runner.placement import (
    check_capacity,
    count_fitting_trials,
    make_placement_group,
    unused_gpu_warning,
)

NODE = {"CPU": 16.0, "GPU": 4.0}


def section(**values: Any) -> ResourcesSection:
    return ResourcesSection(**values)


@pytest.mark.parametrize(
    ("resources", "nodes", "expected"),
    [
        ({"cpus_per_trial": 2}, [NODE], 8),
        ({"cpus_per_trial": 2, "gpus_per_trial": 1}, [NODE], 4),
        ({"cpus_per_trial": 1, "gpus_per_trial": 0.25}, [NODE], 16),
        ({"cpus_per_trial": 4, "gpus_per_trial": 2, "ranks_per_trial": 2}, [NODE] * 2, 4),
        # Three GPUs hold one pair: the third GPUs of two nodes are no pair.
        ({"gpus_per_trial": 2, "ranks_per_trial": 2}, [{"CPU": 9.0, "GPU": 3.0}] * 2, 2),
        ({"gpus_per_trial": 2, "ranks_per_trial": 2}, [{"CPU": 9.0, "GPU": 1.0}] * 2, 0),
        ({"gpus_per_trial": 2, "ranks_per_trial": 2, "nodes_per_trial": 2}, [NODE], 0),
        (
            {"gpus_per_trial": 2, "ranks_per_trial": 2, "nodes_per_trial": 2},
            [NODE, {"CPU": 9.0, "GPU": 1.0}],
            1,
        ),
        (
            {"gpus_per_trial": 4, "ranks_per_trial": 4, "nodes_per_trial": 2},
            [NODE, NODE, NODE],
            3,
        ),
        ({"cpus_per_trial": 64}, [NODE], 0),
    ],
)
def test_how_many_trials_fit(
    resources: dict[str, Any], nodes: list[dict[str, float]], expected: int
) -> None:
    assert count_fitting_trials(section(**resources), nodes) == expected


def test_a_trial_that_never_fits_is_refused() -> None:
    pair = section(gpus_per_trial=2, ranks_per_trial=2, cpus_per_trial=2)
    check_capacity(pair, [NODE])
    small = {"CPU": 16.0, "GPU": 1.0}
    with pytest.raises(
        StudyError, match=r"\{CPU: 2, GPU: 2\}; the cluster has 1 node with \{CPU: 16, GPU: 1\}"
    ):
        check_capacity(pair, [small])
    check_capacity(pair, [small], [NODE])
    check_capacity(pair, [small], None)
    both = r"2 nodes with \{CPU: 16, GPU: 1\} and can grow to 4 nodes with \{CPU: 16, GPU: 1\}"
    with pytest.raises(StudyError, match=both):
        check_capacity(pair, [small] * 2, [small] * 4)
    with pytest.raises(StudyError, match="no nodes and can grow to 4 nodes"):
        check_capacity(pair, [], [small] * 4)


def test_gpus_that_trials_would_run_beside_are_pointed_out() -> None:
    """Trials on processors fit GPU machines as well, at the price of GPU machines."""
    bought = [{"CPU": 0.0}, *[{"CPU": 8.0, "GPU": 1.0}] * 8]
    warning = unused_gpu_warning(section(), bought)
    assert warning.startswith("8 nodes have GPUs")
    assert warning.endswith("resources: {gpus_per_trial: 1, cpus_per_trial: 8}")
    assert not unused_gpu_warning(section(gpus_per_trial=1, cpus_per_trial=8), bought)
    assert not unused_gpu_warning(section(), [{"CPU": 8.0}])
    assert not unused_gpu_warning(section(cpus_per_trial=9), [{"CPU": 32.0}, *bought])


def test_what_a_cluster_may_grow_to_is_what_its_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert possible_nodes_or_none(9) is None, "no file: others may join by hand"
    file = tmp_path / "ray_bootstrap_config.yaml"
    kinds: dict[str, Any] = {"head": {"resources": {"CPU": 0}}, "w": {"resources": {"CPU": 4}}}
    config = {"head_node_type": "head", "max_workers": 2, "available_node_types": kinds}
    file.write_text(yaml.safe_dump(config))
    assert possible_nodes_or_none(1) == [{"CPU": 0}, {"CPU": 4}, {"CPU": 4}]
    kinds["w"]["resources"] = {}
    file.write_text(yaml.safe_dump(config))
    assert possible_nodes_or_none(2) is None, "the file of one's own machines does not say"
    assert possible_nodes_or_none(3) == [], "all of them are there: no other will come"


def test_own_machines_that_are_all_there_and_too_small_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file that `ray up` leaves on the head, as Ray completes it."""
    from ray.autoscaler._private.util import prepare_config

    monkeypatch.setenv("HOME", str(tmp_path))
    written = render_onprem_file(name="own", hosts=["a", "b", "c"], user="me", key=Path("/k"))
    config = prepare_config(yaml.safe_load(written))
    (tmp_path / "ray_bootstrap_config.yaml").write_text(yaml.safe_dump(config))
    big, small = section(gpus_per_trial=1), {"CPU": 8.0}
    check_capacity(big, [small] * 2, possible_nodes_or_none(2))
    with pytest.raises(
        StudyError, match=r"\{CPU: 1, GPU: 1\}; the cluster has 3 nodes with \{CPU: 8, GPU: 0\}"
    ):
        check_capacity(big, [small] * 3, possible_nodes_or_none(3))


def test_bundles_are_the_nodes_of_a_trial() -> None:
    one = make_placement_group(section(cpus_per_trial=2, gpus_per_trial=0.5))
    assert one.bundles == [{"CPU": 2.0, "GPU": 0.5}]
    assert not one.head_bundle_is_empty
    pair = make_placement_group(section(cpus_per_trial=4, gpus_per_trial=2, ranks_per_trial=2))
    assert pair.bundles == [{"CPU": 4.0, "GPU": 2.0}]
    assert pair.head_bundle_is_empty
    wide = make_placement_group(
        section(cpus_per_trial=4, gpus_per_trial=4, ranks_per_trial=4, nodes_per_trial=2)
    )
    assert wide.bundles == [{"CPU": 2.0, "GPU": 2.0}] * 2
    assert wide.strategy == "STRICT_SPREAD"


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"gpus_per_trial": 2}, "set ranks_per_trial: 2"),
        ({"gpus_per_trial": 3, "ranks_per_trial": 2}, "must be 0 or equal to `ranks_per_trial`"),
        ({"gpus_per_trial": 0.5, "ranks_per_trial": 2}, "must be 0 or equal to `ranks_per_trial`"),
        ({"cpus_per_trial": 3, "ranks_per_trial": 2}, "multiple of `ranks_per_trial`"),
        ({"ranks_per_trial": 3, "nodes_per_trial": 2}, "multiple of `nodes_per_trial`"),
        ({"nodes_per_trial": 2}, "multiple of `nodes_per_trial`"),
    ],
)
def test_resources_that_do_not_divide_are_refused(resources: dict[str, Any], message: str) -> None:
    content = {"name": "s", "data": "glyphs", "losses": ["triplet"], "resources": resources}
    with pytest.raises(StudyError, match=message):
        build_plan(parse_config(content))


def test_slots_that_are_held_do_not_use_up_the_limit_of_a_study(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four GPUs one is held; a study that may use two still uses two."""
    nodes = [{"CPU": 4.0, "GPU": 4.0}]
    monkeypatch.setattr(placement, "list_alive_nodes", lambda: nodes)
    for max_concurrent, held, slots in ((2, 1, 2), (2, 3, 1), (None, 1, 3), (1, 4, 0), (1, 9, 0)):
        resources = ResourcesSection(gpus_per_trial=1, max_concurrent=max_concurrent)
        count_slots = placement.make_slot_counter(resources, functools.partial(int, held))
        assert count_slots() == slots
