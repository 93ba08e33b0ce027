"""The code that travels with a logged model: images or features in, embeddings out.

MLflow copies this file into the model, so it may import nothing of this project.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class Embedder(PythonModel):  # type: ignore[misc]
    """Runs an exported torch program; preprocessing is part of the program."""

    def load_context(self, context: Any) -> None:
        """Load the program once."""
        self._program = torch.export.load(context.artifacts["program"]).module()

    # MLflow reads the hints of this method's inputs as a schema, and an array is none of its types.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Embeddings (n, d) of a batch of images or features (n, ...), row by row."""
        with torch.inference_mode():
            embeddings = self._program(torch.from_numpy(np.ascontiguousarray(model_input)))
        return embeddings.float().numpy()


set_model(Embedder())
