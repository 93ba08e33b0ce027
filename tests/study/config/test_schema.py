"""Values that a study file may and may not have, and their defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.config.loader import load_config, parse_config
from study.config.planner import build_plan
from study.errors import StudyError
from study.trials.job import Job
from tests.support.study_files import MINIMAL_FILE, build_minimal_plan, write_study_file
from trainables.config import TrialSpec


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    file = load_config(write_study_file(tmp_path, MINIMAL_FILE))
    assert file.search.sampler == "auto"
    assert file.search.sobol_share == 0.4
    assert file.protocol.objective == "map_at_r"
    assert list(file.losses) == ["proxy_anchor", "triplet"]


def test_nmi_is_measured_only_if_requested(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="'nmi' is not measured"):
        load_config(write_study_file(tmp_path, MINIMAL_FILE + "protocol: {objective: nmi}\n"))
    requested = MINIMAL_FILE + "protocol: {objective: nmi, nmi: true}\n"
    plan = build_plan(load_config(write_study_file(tmp_path, requested)))
    job = Job("t-0", "triplet", 0, "published", plan.example_point("triplet"), seed=0)
    spec = plan.build_trial_spec(job, cache_dir=tmp_path, checkpoint_dir="")
    assert spec.nmi
    assert TrialSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search: {trials: 0}", "`search.trials`"),
        ("search: {sampler: bayes}", "'tpe'"),
        ("protocol: {objective: recall_at_16}", "objective 'recall_at_16' is not measured"),
        ("protocol: {folds: 3}", "`protocol.folds`"),
        ("resources: {cpus_per_trial: 0}", "`resources.cpus_per_trial`"),
        ("resources: {keep_mib: 0}", "`resources.keep_mib`"),
        ("resources: {keep_mib: .inf}", "`resources.keep_mib`"),
        ("storage: {checkpoint_every: 0}", "`storage.checkpoint_every`: must be `auto` or"),
        ("storage: {checkpoint_every: 1.5}", "number of epochs >= 1, but got 1.5"),
        ("storage: {checkpoint_every: often}", "number of epochs >= 1, but got 'often'"),
        ("training: [1]", "`training`"),
        ("tracking: {uri: 'foo://bar'}", "http(s)://HOST"),
        ("tracking: {uri: 'foo://me:secret@bar'}", "foo://me:***@bar"),
        ("tracking: {uri: 'postgresql://me:secret@db:abc/x'}", "'postgresql://me:***@db:abc/x'"),
        ("tracking: {uri: 'postgresql://me:secret@db:70000/x'}", "invalid host or port"),
        ("tracking: {uri: 'https://[::1'}", "invalid host or port"),
        ("tracking: {uri: 'https://'}", "invalid host or port"),
        ("tracking: {uri: 'sqlite:///'}", "must be a file, sqlite:///PATH"),
        ("tracking: {uri: 'sqlite://'}", "must be a file, sqlite:///PATH"),
        ("tracking: {uri: 'sqlite:///:memory:'}", "must be a file, sqlite:///PATH"),
    ],
)
def test_invalid_values_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StudyError) as error:
        load_config(write_study_file(tmp_path, MINIMAL_FILE + text + "\n"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


def test_a_file_without_the_key_keeps_the_default_of_the_version_that_stored_it() -> None:
    stored, new, explicit = (
        build_minimal_plan({} if value is None else {"storage": {"checkpoint_every": value}}).file
        for value in (1, None, 2)
    )
    assert new.storage.checkpoint_every == "auto"
    assert new.with_stored_defaults(stored) == stored
    assert explicit.with_stored_defaults(stored) == explicit


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ("[triplet, triplet]", "listed twice"),
        ("[]", "at least one loss"),
        ("{proxy_anchor: {search: {alpha: [20, 2]}}}", "`low <= high` must hold"),
        ("{proxy_anchor: {search: {alpha: [0, 2, log]}}}", "`low > 0`"),
        ("{proxy_anchor: {search: {alpha: 3}}}", "`losses.proxy_anchor.search.alpha`"),
        ("[[a]]", "a loss must be listed by its name, but got ['a']"),
        ("{proxy_anchor: {search: {alpha: [-5, 5, log]}}}", "`low > 0`"),
    ],
)
def test_invalid_lists_of_losses_are_named(losses: str, message: str, tmp_path: Path) -> None:
    path = write_study_file(tmp_path, f"name: s\ndata: glyphs\nlosses: {losses}\n")
    with pytest.raises(StudyError) as error:
        load_config(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("section", "name"), [("data", "glyphs"), ("backbone", "conv4"), ("losses", "triplet")]
)
def test_a_section_may_be_a_name(section: str, name: str) -> None:
    content = {"name": "s", "data": "glyphs", "losses": ["triplet"], section: name}
    file = parse_config(content)
    assert (file.data.name, list(file.losses)) == ("glyphs", ["triplet"])
    assert file.backbone.name == "conv4"


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "x" * 101])
def test_a_study_name_is_a_file_name(name: str) -> None:
    with pytest.raises(StudyError, match="a study name must"):
        parse_config({"name": name, "data": "glyphs", "losses": ["triplet"]})


def test_early_stopping_is_switched_by_one_word() -> None:
    content = {"name": "s", "data": "glyphs", "losses": ["triplet"]}
    stop = parse_config({**content, "search": {"stop_early": False}}).search.stop_early
    assert not stop.enabled
    assert stop.reduction == 3


def test_recall_at_is_sorted_and_unique() -> None:
    content = {"name": "s", "data": "glyphs", "losses": ["triplet"]}
    file = parse_config({**content, "protocol": {"recall_at": [4, 1, 4]}})
    assert file.protocol.recall_at == (1, 4)
    with pytest.raises(StudyError, match=r"`protocol.recall_at`: .*\[0, 1\]"):
        parse_config({**content, "protocol": {"recall_at": [0, 1]}})
