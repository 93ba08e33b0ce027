"""MLflow pyfunc model that maps images or features to embeddings.

MLflow copies this file into each logged model, so it must not import anything of this project.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class EmbeddingPyfuncModel(PythonModel):  # type: ignore[misc]
    """Runs an exported torch program, which includes the preprocessing."""

    def load_context(self, context: Any) -> None:
        """Load the program."""
        self._program = torch.export.load(context.artifacts["program"]).module()

    # MLflow reads type hints of the inputs as a schema, and its types do not include arrays.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return the embeddings (n, d) of a batch of images or features (n, ...)."""
        with torch.inference_mode():
            embeddings = self._program(torch.from_numpy(np.ascontiguousarray(model_input)))
        return embeddings.float().numpy()


set_model(EmbeddingPyfuncModel())
