"""A search space: roles, points, changed ranges and its version."""

from __future__ import annotations

import dataclasses

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces import TRAINING_PARAMS, get_space
from search_spaces.space import (
    Choice,
    Float,
    Hyperparameter,
    Int,
    PublishedPoint,
    SearchSpace,
    describe_distribution,
    in_range,
    range_endpoints,
)
from tests.support.all_spaces import ALL_SPACES

pytestmark = pytest.mark.split

ALPHA = Hyperparameter(Float(1.0, 64.0, log=True), symbol="α", reason="For tests.")
RATE = Hyperparameter(Float(1e-4, 1e-1, log=True), symbol="η", reason="For tests.")


def small_space(**changed: object) -> SearchSpace:
    """Return a space with one scientific and one nuisance hyperparameter."""
    content: dict[str, object] = {
        "loss": "triplet",
        "paper": "none",
        "scientific": {"alpha": ALPHA},
        "nuisance": {"head_lr": RATE},
        "fixed": {"batch_size": 32},
        "published": (PublishedPoint("paper", {"alpha": 16.0, "head_lr": 1e-3}),),
    }
    return SearchSpace(**(content | changed))  # type: ignore[arg-type]


def test_version_depends_on_the_search_not_on_claims() -> None:
    space = get_space("proxy_anchor")
    assert get_space("proxy_anchor").version_hash == space.version_hash
    assert dataclasses.replace(space, claims=()).version_hash == space.version_hash
    narrower = space.with_changes(search={"alpha": TRAINING_PARAMS["clip_grad"].distribution})
    assert narrower.version_hash != space.version_hash
    assert len({s.version_hash for s in ALL_SPACES}) == len(ALL_SPACES)


def test_a_param_has_one_role() -> None:
    space = small_space()
    assert [space.param_role(p) for p in ("alpha", "head_lr", "batch_size")] == [
        "scientific",
        "nuisance",
        "fixed",
    ]
    with pytest.raises(KeyError):
        space.param_role("delta")
    with pytest.raises(ValueError, match=r"triplet: .*alpha"):
        small_space(fixed={"alpha": 2.0})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": 16.0}, r"missing \['head_lr'\]"),
        ({"alpha": 16.0, "head_lr": 1e-3, "delta": 0.1}, r"unknown \['delta'\]"),
        ({"alpha": 100.0, "head_lr": 1e-3}, r"`alpha=100.0` is outside \[1, 64\] log"),
    ],
)
def test_a_published_point_must_be_a_point_of_the_space(
    values: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small_space(published=(PublishedPoint("paper", values),))


def test_fixing_a_param_drops_it_from_the_points() -> None:
    space = small_space().with_changes(fixed={"alpha": 8.0})
    assert space.param_role("alpha") == "fixed"
    assert space.published[0].values == {"head_lr": 1e-3}
    assert space.excluded_points == ()


def test_a_newly_searched_param_takes_its_old_fixed_value() -> None:
    space = small_space().with_changes(search={"batch_size": Int(16, 64)})
    assert space.param_role("batch_size") == "scientific"
    assert space.published[0].values["batch_size"] == 32
    assert space.searched_params["batch_size"].symbol == "batch_size"
    hints = {"batch_size": TRAINING_PARAMS["batch_size"]}
    hinted = small_space().with_changes(search={"batch_size": Int(16, 64)}, hints=hints)
    assert hinted.searched_params["batch_size"].symbol == "B"


def test_a_point_without_a_value_or_outside_a_range_is_excluded() -> None:
    unknown = small_space().with_changes(search={"delta": Float(0.0, 1.0)})
    assert not unknown.published
    assert "no value of delta" in unknown.excluded_points[0]
    outside = small_space().with_changes(search={"head_lr": Float(0.1, 1.0)})
    assert outside.param_role("head_lr") == "nuisance"
    assert "head_lr=0.001 is outside [0.1, 1]" in outside.excluded_points[0]


def test_a_value_between_the_steps_of_a_range_cannot_be_drawn() -> None:
    assert in_range(FloatDistribution(8.0, 128.0, step=10.0), 38.0)
    assert not in_range(FloatDistribution(8.0, 128.0, step=10.0), 32.0)
    assert not in_range(IntDistribution(16, 240, step=32), 32)
    space = get_space("proxy_anchor").with_changes(
        search={"alpha": FloatDistribution(8.0, 128.0, step=10.0)}
    )
    assert not space.published
    assert "alpha=32 is outside [8, 128] in steps of 10" in space.excluded_points[0]


def test_an_integer_among_choices_is_a_number() -> None:
    choices = CategoricalDistribution((16, 32, 64))
    assert in_range(choices, 32.0)
    assert not in_range(choices, True)
    assert not in_range(CategoricalDistribution((True, False)), 1)


def test_a_value_of_the_wrong_type_is_outside() -> None:
    assert not in_range(Float(0.0, 2.0), True)
    assert not in_range(Float(0.0, 2.0), "1")
    assert not in_range(Int(0, 4), 1.5)
    assert in_range(Int(0, 4), 2.0)


def test_ranges_as_text_and_their_endpoints() -> None:
    assert describe_distribution(Float(8.0, 128.0, log=True)) == "[8, 128] log"
    assert describe_distribution(Int(0, 10)) == "[0, 10]"
    assert describe_distribution(Int(0, 10, step=5)) == "[0, 10] in steps of 5"
    assert describe_distribution(Choice(["avg", "max"])) == "{avg, max}"
    assert range_endpoints(Float(8.0, 128.0, log=True)) == (8.0, 128.0)
    assert range_endpoints(Choice(["avg", "max", "sum"])) == ("avg", "max", "sum")
