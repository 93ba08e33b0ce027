"""The registered winner, loaded and served without this project."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from torch import nn

from study.directory import default_tracking_uri
from study.errors import StudyError
from study.runner.winner import attach_backbone
from study.tracking.model_registry import (
    FeatureInputs,
    ImageInputs,
    export_network,
    log_model,
    serve_command,
)
from study.tracking.sqlite_store import repair_artifact_paths
from study.tracking.ui_server import find_free_port
from tests.support.tracked_study import OpenTracker, TrackedStudy
from trainables.config import TrainingSettings
from trainables.models.backbone import build_backbone
from trainables.models.embedding import EmbeddingModel, pool_features
from trainables.training.context import TrainingContext

pytestmark = pytest.mark.server

MLFLOW_PAGE = Path(__file__).resolve().parents[3] / "docs" / "mlflow.md"
SERVE = "mlflow models serve"


def _network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 16),
    ).eval()


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "groceries"
    shutil.copytree(finished, folder)
    repair_artifact_paths(folder)
    return folder


def test_the_winner_is_registered_loaded_and_served(store: Path) -> None:
    uri, network = default_tracking_uri(store), _network()
    inputs = ImageInputs(height=24, width=20)
    before = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_REGISTRY_URI")
    log = partial(log_model, uri, study="groceries", trial="circle-0008", inputs=inputs)
    assert serve_command(uri, "groceries") == ""
    address = log(network=network, tags={"loss": "circle"})
    assert address == "models:/groceries/1"
    assert log(network=network) == address
    command = serve_command(uri, "groceries")
    assert shlex.split(command)[0] == f"MLFLOW_TRACKING_URI={uri}"
    assert (mlflow.get_tracking_uri(), os.environ.get("MLFLOW_REGISTRY_URI")) == before
    version = MlflowClient(uri).get_model_version("groceries", "1")
    run = MlflowClient(uri).get_run(version.run_id)
    assert run.data.tags["dml.trial"] == "circle-0008"
    assert (run.info.status, run.info.end_time) == ("FINISHED", 1_800_000_017_000)

    images = np.random.default_rng(1).integers(0, 256, (5, 24, 20, 3), dtype=np.uint8)
    mean, std = torch.tensor(inputs.mean), torch.tensor(inputs.std)
    with torch.inference_mode():
        batch = (torch.from_numpy(images).float() / 255 - mean) / std
        expected = network(batch.permute(0, 3, 1, 2)).numpy()
    given = _in_another_process(command, images, store)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_the_documented_command_serves_a_study_of_that_name(
    tmp_path: Path, empty_store: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    folder, inputs = tmp_path / "studies" / "my", ImageInputs(height=24, width=20)
    folder.mkdir(parents=True)
    shutil.copy(empty_store, folder / "mlflow.db")
    tracker = open_tracker(folder, experiment="my")
    tracker.open_study(name="my", plan=tracked_study.plan, losses=["circle"], note="")
    tracked_study.log_trial(
        tracker, tracked_study.make_record("circle", 8, origin="confirm", split="test")
    )
    assert tracker.close(60.0)
    uri, trial = default_tracking_uri(folder), "circle-0008"
    log_model(uri, study="my", trial=trial, network=_network(), inputs=inputs)
    (command,) = [line for line in MLFLOW_PAGE.read_text("utf-8").splitlines() if SERVE in line]
    assert command.replace("$PWD", str(tmp_path)) == serve_command(uri, "my")
    images = np.zeros((2, 24, 20, 3), dtype=np.uint8)
    assert _in_another_process(command, images, tmp_path).shape == (2, 16)


def test_features_and_unknown_trials(store: Path) -> None:
    uri, network = default_tracking_uri(store), nn.Linear(12, 4)
    address = log_model(
        uri, study="groceries", trial="circle-0001", network=network, inputs=FeatureInputs(12)
    )
    mlflow.set_tracking_uri(uri)
    try:
        model = mlflow.pyfunc.load_model(address)
    finally:
        mlflow.set_tracking_uri(None)
    rows = np.random.default_rng(1).normal(size=(7, 12)).astype(np.float32)
    expected = network(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-4, atol=1e-6)
    assert model.metadata.signature.outputs.inputs[0].shape == (-1, 4)
    with pytest.raises(StudyError, match="no trial 'circle-9999'"):
        log_model(
            uri, study="groceries", trial="circle-9999", network=network, inputs=FeatureInputs(12)
        )


def test_a_registered_model_of_other_origin_is_not_touched(store: Path) -> None:
    uri, network = default_tracking_uri(store), nn.Linear(12, 4)
    client = MlflowClient(uri)
    client.create_registered_model("groceries")
    client.create_model_version("groceries", source=str(store))
    with pytest.raises(StudyError, match="model 'groceries' was not written by this study"):
        log_model(
            uri, study="groceries", trial="circle-0001", network=network, inputs=FeatureInputs(12)
        )
    assert [v.version for v in client.search_model_versions("name = 'groceries'")] == [1]


def test_a_frozen_backbone_of_tokens_is_part_of_the_model(tmp_path: Path) -> None:
    backbone = build_backbone("test_vit", in_channels=3, image_size=32, frozen=True)
    head = EmbeddingModel(
        None, backbone.num_features, TrainingSettings(embedding_dim=8, pooling="max")
    ).eval()
    context = TrainingContext(cast(Any, None), {"frozen": True}, backbone, 32, tmp_path)
    network, inputs = attach_backbone(context, head)
    assert export_network(network, inputs, tmp_path / "program.pt2") == 8
    assert isinstance(inputs, ImageInputs)
    program = torch.export.load(tmp_path / "program.pt2").module()
    for count in (1, 5):
        images = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8)
        batch = (images / 255 - torch.tensor(inputs.mean)) / torch.tensor(inputs.std)
        with torch.inference_mode():
            expected = head(pool_features(backbone(batch.permute(0, 3, 1, 2)), "max"))
            torch.testing.assert_close(program(images), expected, rtol=1e-3, atol=1e-5)


def _in_another_process(
    command: str, images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], folder: Path
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Run the serving command without this project and return its predictions."""
    port = find_free_port()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ours = {"PYTHONPATH": "", "PATH": path, "OMP_NUM_THREADS": "1", "MLFLOW_PORT": str(port)}
    log = (folder / "serve.log").open("wb")
    server = subprocess.Popen(
        ["sh", "-c", command],
        env={**os.environ, **ours},
        cwd=folder,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 120.0
        while True:
            assert server.poll() is None, (folder / "serve.log").read_text()
            assert time.monotonic() < end
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5.0)
                break
            except OSError:
                time.sleep(0.2)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            data=json.dumps({"inputs": images.tolist()}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60.0) as answer:
            return np.array(json.load(answer)["predictions"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        log.close()
