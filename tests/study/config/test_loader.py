"""Study files are read strictly; overrides and paths are resolved."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.config.loader import load_config, merged_yaml, reject_relative_paths
from study.errors import StudyError
from tests.support.study_files import MINIMAL_FILE, write_study_file


def test_learning_rates_without_a_dot_are_numbers(tmp_path: Path) -> None:
    file = load_config(write_study_file(tmp_path, MINIMAL_FILE + "training: {proxy_lr: 1e-4}\n"))
    assert file.training["proxy_lr"] == 1e-4


def test_overrides_reach_every_depth(tmp_path: Path) -> None:
    path = write_study_file(tmp_path, MINIMAL_FILE)
    file = load_config(
        path,
        ["search.trials=7", "losses.proxy_anchor.fixed.delta=0.2", "data.classes=220", "name=t"],
    )
    assert file.search.trials == 7
    assert file.losses["proxy_anchor"].fixed == {"delta": 0.2}
    assert file.data.reader_options == {"classes": 220}
    assert file.name == "t"


def test_relative_paths_are_resolved_against_the_file_or_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "images").mkdir()
    text = "name: s\ndata: {name: folder, path: PATH}\nlosses: [triplet]\n"
    monkeypatch.chdir(tmp_path / "here")
    near = load_config(write_study_file(tmp_path, text.replace("PATH", "images")))
    assert near.data.reader_options["path"] == str(tmp_path / "images")
    other = load_config(write_study_file(tmp_path, text.replace("PATH", "elsewhere")))
    assert other.data.reader_options["path"] == str(tmp_path / "here" / "elsewhere")
    fixed = load_config(write_study_file(tmp_path, text.replace("PATH", "/data/x")))
    assert fixed.data.reader_options["path"] == "/data/x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("serch: {trials: 3}", "unknown key `serch`; did you mean 'search'?"),
        ("search: {trails: 3}", "unknown key `search.trails`; did you mean 'trials'?"),
        ("search: {stop_early: {grace: 1}}", "did you mean 'grace_epochs'?"),
        ("name: 'a/b'", "key 'name' appears twice"),
        ("x: " + 2000 * "[" + 2000 * "]", "nested too deeply"),
    ],
)
def test_invalid_yaml_and_unknown_keys_are_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(StudyError) as error:
        load_config(write_study_file(tmp_path, MINIMAL_FILE + text + "\n"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty or not a mapping; run `study new`"),
        (b"- a\n", "is empty or not a mapping"),
        (b"name: [", "is not valid YAML"),
        (b"name: \xff", "cannot read"),
        (b"name: s\n", "`data` is missing (and 1 more)"),
    ],
)
def test_files_that_are_not_study_files_are_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    with pytest.raises(StudyError) as error:
        load_config(tmp_path / "study.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"nowhere.yaml does not exist"):
        load_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("search.trials", "--set must have the form a.b=c, but got 'search.trials'"),
        ("=3", "--set must have the form a.b=c"),
        ("search.trials=[", "--set search.trials: '[' is not valid YAML"),
        ("name.x=1", "--set name.x: `name` is a value, not a section"),
    ],
)
def test_invalid_overrides_are_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(StudyError) as error:
        load_config(write_study_file(tmp_path, MINIMAL_FILE), [override])
    assert message in str(error.value)


def test_the_merged_file_is_equal_to_the_file_with_overrides(tmp_path: Path) -> None:
    """Strings like '1e3' keep their type."""
    path = write_study_file(tmp_path, MINIMAL_FILE)
    overrides = ["data.note='1e3'", "training.proxy_lr=1e-4", "search.trials=7"]
    merged = write_study_file(tmp_path, merged_yaml(path, overrides))
    path = write_study_file(tmp_path, merged.read_text("utf-8"))
    file = load_config(path)
    assert file.data.reader_options == {"note": "1e3"}
    assert file.training["proxy_lr"] == 1e-4
    assert file.search.trials == 7


@pytest.mark.parametrize(
    ("path", "is_relative"),
    [("images", True), ("./x", True), ("/data", False), ("s3://b/x", False), ("~/x", False)],
)
def test_relative_paths_are_rejected_for_clusters(
    tmp_path: Path, path: str, is_relative: bool
) -> None:
    file = write_study_file(
        tmp_path, f"name: s\ndata: {{name: folder, path: {path}}}\nlosses: [triplet]\n"
    )
    if not is_relative:
        reject_relative_paths(file)
        return
    with pytest.raises(StudyError, match=f"`data.path` is the relative path '{path}'"):
        reject_relative_paths(file)


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    text = "name: s\ndata: {name: folder, path: ~/x}\nlosses: [triplet]\n"
    assert load_config(write_study_file(tmp_path, text)).data.reader_options["path"] == (
        "/home/ada/x"
    )
