"""A submitted study file: the cluster's defaults, and comparison with the existing study."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.cluster import head_process
from study.cluster.submitted_file import (
    apply_cluster_defaults,
    load_current_file,
    require_same_file,
)
from study.config.loader import load_config
from study.config.plan import save_plan
from study.errors import StudyError
from tests.support.cluster_files import (
    STUDY_FILE,
    prepare_command,
)
from tests.support.scheduler_simulation import make_plan


def test_a_new_study_gets_the_defaults_of_the_cluster(head_folder: Path) -> None:
    command, _ = prepare_command(STUDY_FILE, "--no-report")
    path = head_process.DetachedRun("far").study_file
    assert command == ["run", str(path), "--no-report"]
    assert list(path.parent.iterdir()) == [path], "no other file remains"
    file = load_config(path)
    assert file.tracking.uri == "http://127.0.0.1:5000"
    assert file.storage.checkpoints == "s3://bucket/x"
    prepare_command(STUDY_FILE + "tracking: {uri: 'http://x'}\nstorage: {checkpoints: /mnt/y}\n")
    own = load_config(path)
    assert (own.tracking.uri, own.storage.checkpoints) == ("http://x", "/mnt/y")


def test_values_of_the_file_win_over_the_defaults(head_folder: Path, tmp_path: Path) -> None:
    submitted = apply_cluster_defaults(STUDY_FILE + "tracking: {uri: 'http://x'}\n", tmp_path)
    assert submitted.file.tracking.uri == "http://x"
    assert submitted.file.storage.checkpoints == "s3://bucket/x"
    (tmp_path / "again.yaml").write_text(submitted.text)
    assert load_config(tmp_path / "again.yaml") == submitted.file
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.yaml"], "no copy remains"


def test_an_invalid_file_is_an_error(head_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="trails"):
        apply_cluster_defaults(STUDY_FILE.replace("trials", "trails"), tmp_path)


def test_the_current_file_is_that_of_the_plan_or_of_the_last_start(
    head_folder: Path, tmp_path: Path
) -> None:
    last = tmp_path / "far.yaml"
    assert load_current_file("far", last) is None
    last.write_text(STUDY_FILE)
    assert load_current_file("far", last) == load_config(last)
    plan = make_plan(name="far")
    (head_folder / "far").mkdir(parents=True)
    save_plan(plan, head_folder / "far")
    assert load_current_file("far", last) == plan.file


def test_a_difference_is_named_without_its_values(head_folder: Path, tmp_path: Path) -> None:
    old = apply_cluster_defaults(STUDY_FILE, tmp_path)
    new = apply_cluster_defaults(STUDY_FILE + "tracking: {uri: 'http://a:s3cret@b'}\n", tmp_path)
    require_same_file(new, None, "exists")
    require_same_file(new, new.file, "exists")
    with pytest.raises(StudyError, match=r"study far exists \(`tracking.uri` differs\)") as caught:
        require_same_file(new, old.file, "exists")
    assert "s3cret" not in str(caught.value)


def test_a_file_of_an_earlier_version_is_that_of_its_study(
    head_folder: Path, tmp_path: Path
) -> None:
    """Its plan holds a default that has changed since."""
    stored = apply_cluster_defaults(STUDY_FILE + "storage: {checkpoint_every: 1}\n", tmp_path)
    same = apply_cluster_defaults(STUDY_FILE, tmp_path)
    require_same_file(same, stored.file, "exists")
    other = apply_cluster_defaults(STUDY_FILE + "training: {epochs: 3}\n", tmp_path)
    with pytest.raises(StudyError, match=r"`training.epochs` differs"):
        require_same_file(other, stored.file, "exists")
