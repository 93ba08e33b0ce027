"""Model registry: the confirmed winner as an MLflow model that others can load and serve.

The trained network is exported as a torch program together with its preprocessing. Using it needs
torch and MLflow but nothing of this project, and loading it runs no pickled code.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec
from torch import Tensor, nn

from study.errors import StudyError
from study.tracking import records as names
from study.tracking.queries import reader_settings
from study.tracking.reader import find_experiment
from study.utils.redaction import redact
from study.utils.tracking_uri import with_driver

MODEL_NAME = "embedding"
WINNER_ALIAS = "winner"


@dataclass(frozen=True)
class ImageInputs:
    """Images as inputs: uint8, (n, height, width, channels), already resized.

    Args:
        height: Pixels.
        width: Pixels.
        mean: Mean per channel of values in [0, 1], which is subtracted.
        std: Standard deviation per channel, by which values are divided.
    """

    height: int
    width: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @property
    def tensor_spec(self) -> TensorSpec:
        """The input's part of the signature."""
        return TensorSpec(np.dtype(np.uint8), (-1, self.height, self.width, len(self.mean)))


@dataclass(frozen=True)
class FeatureInputs:
    """Features of a frozen backbone as inputs: float32, (n, size)."""

    size: int

    @property
    def tensor_spec(self) -> TensorSpec:
        """The input's part of the signature."""
        return TensorSpec(np.dtype(np.float32), (-1, self.size))


def log_model(
    uri: str,
    *,
    study: str,
    trial: str,
    network: nn.Module,
    inputs: ImageInputs | FeatureInputs,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Log a trial's network with its run and register it under the study's name.

    Args:
        uri: The study's tracking store, which must hold all records of the trial (`Tracker.flush`).
        study: Name of the study and of the registered model.
        trial: Key of the trial.
        network: Maps a float batch ((n, 3, height, width), normalised; or features) to embeddings.
        inputs: Shape and preprocessing of the inputs.
        tags: Tags of the model version, such as its loss and confirmed score.

    Returns:
        The address for `mlflow models serve -m`, e.g. `models:/my-study/1`. A trial that already
        has a version keeps it. `models:/my-study@winner` is always the version logged last.

    Raises:
        StudyError: The trial does not exist, or the registered model belongs to something else.
    """
    uri = with_driver(uri)
    client = MlflowClient(tracking_uri=uri)
    with reader_settings(), _use_tracking_uri(uri), tempfile.TemporaryDirectory() as folder:
        run_id, experiment_id = _find_trial_run(client, study, trial)
        for version in client.search_model_versions(f"name = '{study}'"):
            if version.tags.get(names.STUDY_TAG) != study:
                raise StudyError(
                    f"the registered model {study!r} was not written by this study; rename it in "
                    "MLflow, or choose another name for the study"
                )
            if version.run_id == run_id:
                client.set_registered_model_alias(study, WINNER_ALIAS, version.version)
                return f"models:/{study}/{version.version}"
        program = Path(folder, "program.pt2")
        size = export_network(network, inputs, program)
        output = TensorSpec(np.dtype(np.float32), (-1, size))
        logged = client.create_logged_model(
            experiment_id, name=MODEL_NAME, source_run_id=run_id, model_type="embedding"
        )
        info = Model.log(
            None,
            mlflow.pyfunc,
            registered_model_name=study,
            run_id=run_id,
            model_id=logged.model_id,
            tags={names.STUDY_TAG: study, names.TRIAL_TAG: trial, **(tags or {})},
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"program": str(program)},
            signature=ModelSignature(Schema([inputs.tensor_spec]), Schema([output])),
            pip_requirements=_pip_requirements(),
        )
        client.set_registered_model_alias(study, WINNER_ALIAS, str(info.registered_model_version))
    return f"models:/{study}/{info.registered_model_version}"


def serve_command(uri: str, study: str) -> str:
    """Return the command that serves the study's winner on this machine; empty if it has none."""
    uri = with_driver(uri)
    with reader_settings():
        try:
            MlflowClient(tracking_uri=uri).get_model_version_by_alias(study, WINNER_ALIAS)
        except MlflowException:
            return ""
    return (
        f"MLFLOW_TRACKING_URI={shlex.quote(redact(uri))} "
        f"mlflow models serve -m models:/{study}@{WINNER_ALIAS} --env-manager local"
    )


def export_network(network: nn.Module, inputs: ImageInputs | FeatureInputs, path: Path) -> int:
    """Write the network and its preprocessing as one torch program; return the embedding size."""
    was_training = network.training
    module = _PreprocessedNetwork(network.cpu(), inputs).eval()
    shape = [3 if extent == -1 else extent for extent in inputs.tensor_spec.shape]
    example = torch.zeros(
        shape, dtype=torch.uint8 if isinstance(inputs, ImageInputs) else torch.float32
    )
    try:
        with torch.no_grad():
            size = int(module(example).shape[1])
            batch = torch.export.Dim("batch", min=1)
            program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, path)
    finally:
        network.train(was_training)
    return size


class _PreprocessedNetwork(nn.Module):
    """A network preceded by its preprocessing."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, inputs: ImageInputs | FeatureInputs) -> None:
        super().__init__()
        self.network = network
        self.images = isinstance(inputs, ImageInputs)
        if isinstance(inputs, ImageInputs):
            self.register_buffer("mean", torch.tensor(inputs.mean).view(1, -1, 1, 1))
            self.register_buffer("std", torch.tensor(inputs.std).view(1, -1, 1, 1))

    def forward(self, batch: Tensor) -> Tensor:
        if self.images:
            batch = (batch.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
        embeddings: Tensor = self.network(batch)
        return embeddings


def _find_trial_run(client: MlflowClient, study: str, trial: str) -> tuple[str, str]:
    runs = client.search_runs(
        [find_experiment(client, study).experiment_id],
        filter_string=f"tags.`{names.TRIAL_TAG}` = '{trial}'",
        max_results=1,
    )
    if not runs:
        raise StudyError(f"no trial {trial!r} of study {study!r} in the tracking store")
    return runs[0].info.run_id, runs[0].info.experiment_id


@contextlib.contextmanager
def _use_tracking_uri(uri: str) -> Iterator[None]:
    """Set the process's tracking URI, which is the only one that MLflow logs models to."""
    variable = "MLFLOW_TRACKING_URI"  # MLflow sets it, too, for processes started later
    before = os.environ.get(variable)
    mlflow.set_tracking_uri(uri)
    try:
        with warnings.catch_warnings():  # about type hints and examples; a signature replaces both
            warnings.simplefilter("ignore")
            yield
    finally:
        mlflow.set_tracking_uri(None)
        if before is not None:
            os.environ[variable] = before


def _pip_requirements() -> list[str]:
    torch_version = str(torch.__version__).split("+", 1)[0]
    return [f"mlflow=={mlflow.__version__}", f"torch=={torch_version}", f"numpy=={np.__version__}"]
