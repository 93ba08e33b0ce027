"""Tests of `study check`: bad input is reported in one line, and the plan is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from study.config.loader import load_config
from study.config.planner import build_plan
from study.runner.preflight import describe_data, open_data
from study.runner.study_record import make_protocol_record
from study.tracking.ui_server import find_free_port
from tests.support.command_line import (
    STUDY,
    RunCommand,
    change_study,
    save_folder_with_single_image_class,
    save_image_folder,
    write_study_file,
)

pytestmark = pytest.mark.split

BAD_FILES: dict[str, tuple[dict[str, Any] | str, str]] = {
    "unknown key": (change_study(trainin={}), "did you mean 'training'?"),
    "unknown hyperparameter": (
        change_study(losses={"triplet": {"fixed": {"margn": 1}}}),
        "did you mean 'margin'?",
    ),
    "unknown training hyperparameter": (
        change_study(training={"batchsize": 3}),
        "did you mean 'batch_size'?",
    ),
    "unknown loss": (change_study(losses=["circl"]), "circle"),
    "unknown data set": (change_study(data="glyfs"), "glyphs"),
    "unknown data option": (change_study(data={"name": "glyphs", "clases": 9}), "classes"),
    "unknown backbone": (change_study(backbone="resnet5o"), "resnet50"),
    "upside down": (
        change_study(losses={"triplet": {"search": {"margin": [1, 0]}}}),
        "`low <= high`",
    ),
    "too few classes": (
        change_study(training={"batch_size": 256, "images_per_class": 2}),
        "needs 128 classes, got 75",
    ),
    "too few images": (change_study(training={"batch_size": 512}), "a batch of 512 needs"),
    "not yaml": ("name: [", "YAML"),
    "empty file": ("", "empty"),
    "bad type": (change_study(search={"trials": "many"}), "`search.trials`"),
    "epochs searched": (change_study(training={"epochs": [2, 6]}), "epochs cannot be searched"),
    "negative rate": (change_study(training={"head_lr": [-1, 0.1]}), "`head_lr >= 0`"),
    "rate that is not a number": (
        change_study(training={"head_lr": float("nan")}),
        "must be finite",
    ),
    "bad port": (
        change_study(tracking={"uri": "postgresql://ada:pw@db:abc/x"}),
        "'postgresql://ada:***@db:abc/x'",
    ),
    "bad host": (change_study(tracking={"uri": "https://[::1"}), "'https://[::1'"),
    "nested": ("a: " + 3000 * "[" + 3000 * "]", "nested too deeply"),
}


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_study_file_is_one_line_and_nothing_is_written(
    case: str, command: str, study: RunCommand
) -> None:
    content, message = BAD_FILES[case]
    done = study(command, write_study_file(content))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    assert sorted(p.name for p in Path.cwd().iterdir()) == ["my.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_location_that_cannot_store_checkpoints_is_one_line(
    command: str, study: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written, not after every trial has failed on it."""
    (tmp_path / "taken").touch()
    storage = {"checkpoints": str(tmp_path / "taken")}
    done = study(command, write_study_file(change_study(storage=storage)))
    assert done.code == 2
    assert f"storage.checkpoints: {tmp_path}/taken cannot be" in done.err
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_free_port()}")
    storage = {"checkpoints": "s3://my-bucket/runs"}
    away = study(command, write_study_file(change_study(storage=storage)))
    assert away.code == 2
    assert "storage.checkpoints: s3://my-bucket/runs cannot be" in away.err
    assert done.err.count("\n") == away.err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.yaml", "taken"]


def test_check_leaves_a_shared_folder_unchanged(study: RunCommand, tmp_path: Path) -> None:
    storage = {"checkpoints": str(tmp_path / "a" / "b")}
    done = study("check", write_study_file(change_study(storage=storage)))
    assert done.code == 0, done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.yaml"]


def _empty_folder() -> str:
    Path("images").mkdir()
    return "images"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "nowhere", "nowhere"),
        (_empty_folder, "images"),
        (lambda: save_image_folder(16, 1), "at least 2"),
        (save_folder_with_single_image_class, "class99 has 1"),
        (lambda: save_image_folder(3, 4), "classes"),
    ],
    ids=["missing", "empty", "one image per class", "one single image", "too few classes"],
)
def test_a_bad_image_folder_is_one_line(make: Any, message: str, study: RunCommand) -> None:
    data = {"name": "folder", "path": make()}
    content = change_study(data=data, training={"batch_size": 8})
    done = study("check", write_study_file(content))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_class_with_a_single_image_is_noted_where_it_is_allowed(study: RunCommand) -> None:
    path = save_folder_with_single_image_class()
    data = {"name": "folder", "path": path, "min_images": 1, "size": 28}
    training = {"batch_size": 8, "images_per_class": 2}
    done = study("check", write_study_file(change_study(data=data, training=training)))
    assert done.code == 0, done.err
    notes = [line for line in done.out.splitlines() if "note: folder: 1 test class" in line]
    assert len(notes) == 1
    assert "'class99'" in notes[0]


def test_queries_without_a_relevant_image_are_refused_before_any_trial(study: RunCommand) -> None:
    labels = np.repeat(np.arange(24), 4)
    features = np.random.default_rng(0).normal(size=(96, 8)).astype(np.float32)
    # All images of a class are queries or none is, so no query has a relevant image.
    asks = (labels % 2).astype(np.int64)
    np.savez("a.npz", features=features, labels=labels, asks=asks)
    data = {"name": "arrays", "path": "a.npz", "query": "asks=1"}
    content = change_study(data=data, training={"batch_size": 8})
    done = study("check", write_study_file(content))
    assert done.code == 2
    assert "validation" in done.err
    assert "class" in done.err
    assert done.err.count("\n") == 1


def test_check_prints_the_plan_and_the_cost(study: RunCommand) -> None:
    done = study("check", write_study_file(STUDY))
    assert done.code == 0, done.err
    assert "proxy_anchor: 3 points" in done.out
    assert "proxy_anchor  3 trials x 2 epochs x " in done.out
    assert "12 epochs" in done.out
    report = json.loads(study("check", "my.yaml", "--json").out)
    assert report["data"]["train_classes"] == 75
    assert {loss["loss"] for loss in report["losses"]} == {"proxy_anchor", "triplet"}
    assert report["cost"]["epochs_at_most"] == 12
    assert report["gpu_memory"] is None, "trials without a GPU"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("training.micro_batch=4", "per_micro_batch_norm"),
        ("resources.checkpoint_activations=true", "checkpoint_activations"),
    ],
)
def test_settings_that_the_backbone_does_not_support_are_one_line(
    study: RunCommand, change: str, name: str
) -> None:
    done = study("check", write_study_file(STUDY), "--set", change)
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1
    assert name in done.err


def test_check_estimates_the_memory_of_a_gpu(study: RunCommand) -> None:
    file = write_study_file(STUDY)
    changes = ("--set", "resources.gpus_per_trial=1", "--set", "training.batch_size=[16, 128, log]")
    done = study("check", file, *changes)
    assert done.code == 0, done.err
    assert "GPU memory of a step, at most about " in done.out
    memory = json.loads(study("check", file, *changes, "--json").out)["gpu_memory"]["proxy_anchor"]
    assert (memory["batch_size"], memory["precision"]) == (128, "bf16")
    expected = memory["state_gib"] + 128 * memory["mib_per_image"] / 1024
    assert memory["total_gib"] == pytest.approx(expected)


@pytest.mark.parametrize("sampler", ["cmaes", "tpe"])
def test_check_names_the_hyperparameters_that_cma_es_does_not_model(
    study: RunCommand, sampler: str
) -> None:
    """CMA-ES does not model choices; numbers and losses without choices give no advice."""
    searched = {"alpha": [8, 128, "log"], "augment": {"choices": ["light", "none"]}}
    losses = {"proxy_anchor": {"search": searched}, "triplet": None}
    search = {**STUDY["search"], "sampler": sampler}
    file = write_study_file(change_study(losses=losses, search=search))
    done = study("check", file)
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if "CMA-ES" in line]
    content = json.loads(study("check", file, "--json").out)
    advice = [line for line in content["advice"] if "CMA-ES" in line]
    assert lines == [f"advice: {line}" for line in advice]
    assert len(advice) == (sampler == "cmaes")
    for line in advice:
        assert line.startswith("proxy_anchor: ")
        assert " augment" in line
        assert "alpha" not in line


def test_weights_that_do_not_fit_are_noted(
    study: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainables.models.backbone import build_backbone

    state = dict(build_backbone("conv4", in_channels=1, image_size=28).model.state_dict())
    del state["blocks.13.bias"]
    torch.save(state, "weights.pth")
    content = change_study(backbone={"name": "conv4", "pretrained": "weights.pth"})
    note = "note: weights: weights.pth: 23 weights loaded; 1 missing (blocks.13.bias)"
    done = study("check", write_study_file(content))
    assert done.code == 0, done.err
    assert note in done.out
    # What `study run` prints before trials start, and what it records.
    monkeypatch.setattr("study.cli.execute.run_and_print", lambda *_, **__: 0)
    assert note in study("run", "my.yaml").out
    plan = build_plan(load_config(Path("my.yaml")))
    data = describe_data(plan, open_data(plan, cache_dir=tmp_path / "cache"))
    assert make_protocol_record(plan, data)["notes"] == [note.removeprefix("note: ")]


def test_a_store_that_cannot_be_opened_is_refused_before_anything_runs(
    study: RunCommand, tmp_path: Path
) -> None:
    file = write_study_file(change_study(tracking={"uri": "mysql://ada:s3cret@db/x"}))
    for command in ("check", "run"):
        done = study(command, file)
        assert done.code == 2
        assert "mysql://ada:***@db/x" in done.err
        assert "s3cret" not in done.err
    assert not (tmp_path / "studies").exists()
    down = study("check", write_study_file(change_study(tracking={"uri": "http://127.0.0.1:9"})))
    assert down.code == 0
    assert down.err.startswith("warning: ")
    assert "http://127.0.0.1:9" in down.err
