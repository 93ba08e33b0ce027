"""How does the confirmed winner become a model that others load and serve?

The trained network is exported as a torch program together with its preprocessing, so using it
needs torch and MLflow but nothing of this project, and loading it runs no pickled code.
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
from study.tracking.address import with_driver
from study.tracking.fetch import reader_settings
from study.tracking.reader import find_experiment
from study.tracking.redaction import redact

MODEL_NAME = "embedding"
ALIAS = "winner"


@dataclass(frozen=True)
class Images:
    """Inputs that are images: uint8, (n, height, width, channels), already of this size.

    Args:
        height: Pixels.
        width: Pixels.
        mean: Per channel, of values in [0, 1]; subtracted.
        std: Per channel; divided by.
    """

    height: int
    width: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @property
    def spec(self) -> TensorSpec:
        """The input's part of the signature."""
        return TensorSpec(np.dtype(np.uint8), (-1, self.height, self.width, len(self.mean)))


@dataclass(frozen=True)
class Features:
    """Inputs that are features of a frozen backbone: float32, (n, size)."""

    size: int

    @property
    def spec(self) -> TensorSpec:
        """The input's part of the signature."""
        return TensorSpec(np.dtype(np.float32), (-1, self.size))


def log_model(
    uri: str,
    *,
    study: str,
    trial: str,
    network: nn.Module,
    inputs: Images | Features,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Log a trial's network with its run and register it under the study's name.

    Args:
        uri: The study's tracking store; everything told about the trial must be there (`flush`).
        study: Name of the study, and of the registered model.
        trial: The trial whose network it is.
        network: Maps a float batch ((n, 3, height, width), normalised; or features) to embeddings.
        inputs: What callers will send.
        tags: Of the model version, such as its loss and confirmed score.

    Returns:
        The address for `mlflow models serve -m`, e.g. `models:/my-study/1`. A trial that has a
        version already keeps it. `models:/my-study@winner` is always the one logged last.

    Raises:
        StudyError: No such trial, or a model of that name that no study registered.
    """
    uri = with_driver(uri)
    client = MlflowClient(tracking_uri=uri)
    with reader_settings(), _using(uri), tempfile.TemporaryDirectory() as folder:
        run_id, experiment_id = _run_of(client, study, trial)
        for version in client.search_model_versions(f"name = '{study}'"):
            if version.tags.get(names.STUDY) != study:
                raise StudyError(f"the store has a model {study!r} of somebody else")
            if version.run_id == run_id:
                client.set_registered_model_alias(study, ALIAS, version.version)
                return f"models:/{study}/{version.version}"
        program = Path(folder, "program.pt2")
        size = export(network, inputs, program)
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
            tags={names.STUDY: study, names.TRIAL: trial, **(tags or {})},
            python_model=str(Path(__file__).with_name("serving.py")),
            artifacts={"program": str(program)},
            signature=ModelSignature(Schema([inputs.spec]), Schema([output])),
            pip_requirements=_requirements(),
        )
        client.set_registered_model_alias(study, ALIAS, str(info.registered_model_version))
    return f"models:/{study}/{info.registered_model_version}"


def serve_command(uri: str, study: str) -> str:
    """The command that serves the study's winner on this machine; empty while it has none."""
    uri = with_driver(uri)
    with reader_settings():
        try:
            MlflowClient(tracking_uri=uri).get_model_version_by_alias(study, ALIAS)
        except MlflowException:
            return ""
    return (
        f"MLFLOW_TRACKING_URI={shlex.quote(redact(uri))} "
        f"mlflow models serve -m models:/{study}@{ALIAS} --env-manager local"
    )


def export(network: nn.Module, inputs: Images | Features, path: Path) -> int:
    """Write the network and its preprocessing as one torch program; gives the embedding's size."""
    was_training = network.training
    whole = _Whole(network.cpu(), inputs).eval()
    shape = [3 if extent == -1 else extent for extent in inputs.spec.shape]
    example = torch.zeros(shape, dtype=torch.uint8 if isinstance(inputs, Images) else torch.float32)
    try:
        with torch.no_grad():
            size = int(whole(example).shape[1])
            batch = torch.export.Dim("batch", min=1)
            program = torch.export.export(whole, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, path)
    finally:
        network.train(was_training)
    return size


class _Whole(nn.Module):
    """Preprocessing and network in one."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, inputs: Images | Features) -> None:
        super().__init__()
        self.network = network
        self.images = isinstance(inputs, Images)
        if isinstance(inputs, Images):
            self.register_buffer("mean", torch.tensor(inputs.mean).view(1, -1, 1, 1))
            self.register_buffer("std", torch.tensor(inputs.std).view(1, -1, 1, 1))

    def forward(self, batch: Tensor) -> Tensor:
        if self.images:
            batch = (batch.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
        embeddings: Tensor = self.network(batch)
        return embeddings


def _run_of(client: MlflowClient, study: str, trial: str) -> tuple[str, str]:
    runs = client.search_runs(
        [find_experiment(client, study).experiment_id],
        filter_string=f"tags.`{names.TRIAL}` = '{trial}'",
        max_results=1,
    )
    if not runs:
        raise StudyError(f"The tracking store holds no trial {trial!r} of a study {study!r}.")
    return runs[0].info.run_id, runs[0].info.experiment_id


@contextlib.contextmanager
def _using(uri: str) -> Iterator[None]:
    """MLflow logs models to the process's tracking URI only: lend it ours."""
    variable = "MLFLOW_TRACKING_URI"  # which MLflow sets too, for processes started later
    before = os.environ.get(variable)
    mlflow.set_tracking_uri(uri)
    try:
        with warnings.catch_warnings():  # about hints and examples, which a signature makes idle
            warnings.simplefilter("ignore")
            yield
    finally:
        mlflow.set_tracking_uri(None)
        if before is not None:
            os.environ[variable] = before


def _requirements() -> list[str]:
    torch_version = str(torch.__version__).split("+", 1)[0]
    return [f"mlflow=={mlflow.__version__}", f"torch=={torch_version}", f"numpy=={np.__version__}"]
