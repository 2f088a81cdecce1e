"""The trained model as MLflow keeps it: images of 8 x 8 pixels in, digits out.

MLflow stores this file and `network.py` with the weights, and imports them to load the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import torch
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec
from network import DigitsNet


class Digits(mlflow.pyfunc.PythonModel):
    """Recognises digits on images whose pixels are 0 to 16, as scikit-learn has them."""

    def load_context(self, context: Any) -> None:
        """Loads the weights."""
        saved = torch.load(context.artifacts["checkpoint"], map_location="cpu", weights_only=True)
        self.network = DigitsNet()
        self.network.load_state_dict(saved["model"])
        self.network.eval()

    # MLflow takes hints of types for a schema.
    def predict(self, context, model_input, params=None):  # noqa: ANN001, ANN201
        """The digit on each image."""
        images = torch.as_tensor(np.asarray(model_input, dtype=np.float32)).view(-1, 1, 8, 8)
        with torch.no_grad():
            return self.network(images / 16).argmax(1).numpy()


def log(checkpoint: Path, register: str) -> None:
    """Logs the model to the run of this job; a name registers a version of it."""
    with mlflow.start_run():  # else it would be of no run
        mlflow.pyfunc.log_model(
            name="model",
            python_model=__file__,
            artifacts={"checkpoint": str(checkpoint)},
            code_paths=[str(Path(__file__).with_name("network.py"))],
            signature=ModelSignature(
                inputs=Schema([TensorSpec(np.dtype("float32"), (-1, 64))]),
                outputs=Schema([TensorSpec(np.dtype("int64"), (-1,))]),
            ),
            pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
            registered_model_name=register or None,
        )


mlflow.models.set_model(Digits())
