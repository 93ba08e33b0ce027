"""Space files: errors of one line, claims, and the loss of a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.claims import GoodValue
from study.errors import StudyError
from study.importers import read_csv_trials, read_spaces
from tests.support.imported_tables import (
    ImportTrials,
    make_optuna_study,
    write_csv,
)

ONE = "losses: {m: {knobs: {a: {low: 0, high: 1}}}}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "must be a mapping"),
        ("losses: {}", "at least one loss"),
        ("loses: {}", "did you mean 'losses'?"),
        ("losses: {m: {knobs: {a: {low: 1}}}}", "a range needs low and high"),
        ("losses: {m: {knobs: {a: {low: 2, high: 1}}}}", "low <= high"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1, long: true}}}}", "did you mean 'log'?"),
        (
            "losses: {m: {knobs: {a: {low: 0, high: 1}}, published: {a: 3}}}",
            "`a=3` is outside",
        ),
        ("a: [", "as YAML: "),
        (f"tolerance: wide\n{ONE}", "`tolerance` must be a number above 0, got 'wide'"),
        (f"tolerance: -0.1\n{ONE}", "`tolerance` must be a number above 0, got -0.1"),
        (f"untrained: low\n{ONE}", "`untrained` must be a number, got 'low'"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1}}, nuisance: a}}", "`nuisance` must be a list"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1}}, claims: {a: 1}}}", "`claims` must be a list"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1}}, claims: [{name: x}]}}", "claim"),
    ],
)
def test_bad_space_file_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(StudyError) as caught:
        read_csv_trials(write_csv(tmp_path, "a,score\n0.1,1\n"), path)
    assert says in str(caught.value)


CLAIMED = """
losses:
  m:
    knobs: {a: {low: 1e-6, high: 1e-2, log: true}}
    published: {a: 1e-4}
    claims: [{name: c, statement: s, source: p, test: %s}]
"""


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("{kind: StableRange, knob: a, low: abc}", "`low` must be a number, got 'abc'"),
        ("{kind: GoodValue, knob: a, value: [1, 2]}", "`value` must be a number, got [1, 2]"),
        ("{kind: GoodValue, knob: a, value: high}", "`value` must be a number, got 'high'"),
        ("{kind: BetterValue, knob: a, better: [0.1], worse: 1}", "a range [low, high], got [0.1]"),
        ("{kind: BetterValue, knob: a, better: 1, worse: [2, 1]}", "range [low, high], got [2, 1]"),
        ("{kind: CostRatio, other: b, at_most: x}", "`at_most` must be a number, got 'x'"),
        ("{kind: CostRatio, other: b, at_most: }", "`at_most` must be a number, got None"),
        ("{kind: BetterLoss, other: 3}", "`other` must be a text, got 3"),
        ("{kind: BetterLoss, other: HOST}", "`other: HOST` would compare m with itself"),
        ("{kind: FasterLoss, other: m}", "`other: m` would compare m with itself"),
        ("[1]", "claim"),
    ],
)
def test_a_malformed_claim_is_one_clear_line(tmp_path: Path, test: str, says: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(CLAIMED % test, "utf-8")
    with pytest.raises(StudyError) as caught:
        read_spaces(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(CLAIMED % "{kind: GoodValue, knob: a, value: 1e-4}", "utf-8")
    space = read_spaces(path)[0]["m"]
    assert space.published[0].values == {"a": 1e-4}
    assert space.claims[0].test == GoodValue("a", 1e-4)


@pytest.mark.slow
def test_a_log_takes_one_loss_and_the_protocol_of_the_space_file(
    tmp_path: Path, import_trials: ImportTrials
) -> None:
    url, _ = make_optuna_study(tmp_path, lambda t: t.suggest_float("x", 0, 1), 3)
    file = tmp_path / "space.yaml"
    params = "{knobs: {x: {low: 0, high: 1}}}"
    file.write_text(
        f"dataset: cub\ntolerance: 0.02\nuntrained: 0.1\nlosses: {{a: {params}, b: {params}}}"
    )
    with pytest.raises(StudyError, match=r"has 2 losses; choose one with --loss \(a, b"):
        import_trials("--optuna", url, "theirs", "--space", file)
    with pytest.raises(StudyError, match="has no loss 'c'"):
        import_trials("--optuna", url, "theirs", "--space", file, "--loss", "c")
    stored = import_trials("--optuna", url, "theirs", "--space", file, "--loss", "b")
    assert set(stored.trials["loss"]) == set(stored.spaces) == {"b"}
    assert stored.protocol["dataset"] == "cub"
    assert stored.protocol["tolerance"] == 0.02
    assert stored.baseline == {"validation": {"score": 0.1}}


def test_ranges_as_optuna_writes_them_are_accepted(tmp_path: Path) -> None:
    """A step of 1 in a log range of integers; choices beside keys that do not apply."""
    path = tmp_path / "space.yaml"
    params = "{n: {low: 1, high: 64, log: true, step: 1, integer: true}, "
    params += "c: {choices: [8, 16], integer: true}, x: {low: 0, high: 1, step: null, unit: s}}"
    path.write_text(f"losses: {{m: {{knobs: {params}}}}}", "utf-8")
    space = read_spaces(path).spaces["m"]
    assert space.distributions == {
        "n": IntDistribution(1, 64, log=True),
        "c": CategoricalDistribution([8, 16]),
        "x": FloatDistribution(0.0, 1.0),
    }
    assert space.searched_params["x"].unit == "s"
    assert space.searched_params["x"].symbol == "x"
