"""A registered model: requests of the Open Inference Protocol, or images, in; replies out."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
from PIL import Image

Tensors = dict[str, np.ndarray]
Scored = tuple[int, int, bytes]  # status, number of rows, reply


class Model:
    """A model from its files. Requests that fit each other are answered together."""

    def __init__(self, folder: str, name: str, version: str) -> None:
        self._whose = {"model_name": name, "model_version": version}
        self._model = mlflow.pyfunc.load_model(folder)
        meta = self._model.metadata
        schema = meta.get_input_schema()
        self._columns = schema is not None and not schema.is_tensor_spec()
        self._named = schema is not None and schema.has_input_names()
        self._inputs = [_described(spec, "input") for spec in schema or ()]
        self._outputs = [_described(spec, "output") for spec in meta.get_output_schema() or ()]
        about = {"name": name, "versions": [version], "platform": "mlflow_pyfunc"}
        self.about = {**about, "inputs": self._inputs, "outputs": self._outputs}

    def _parse(self, body: bytes) -> tuple[dict[str, str], Tensors]:
        """Return what the reply repeats of a request, and its tensors."""
        if not body.lstrip().startswith(b"{"):
            (one,) = self._inputs
            pixels = np.asarray(Image.open(BytesIO(body))).reshape([1, *one["shape"][1:]])
            return {}, {one["name"]: pixels.astype(_dtype(one["datatype"]))}
        request = json.loads(body)
        given = {
            one["name"]: np.asarray(one["data"], _dtype(one["datatype"])).reshape(one["shape"])
            for one in request["inputs"]
        }
        if len(given) == len(self._inputs) == 1:  # the name of the only tensor does not matter
            given = dict(zip([self._inputs[0]["name"]], given.values(), strict=True))
        for one in self._inputs:
            given[one["name"]] = given[one["name"]].astype(_dtype(one["datatype"]))
        if len({len(array) for array in given.values()}) != 1:
            raise ValueError("its tensors have different lengths")
        return {"id": request["id"]} if "id" in request else {}, given

    def _predict(self, given: Tensors) -> Tensors:
        data: Any = given
        if self._columns:
            data = pd.DataFrame({name: list(array) for name, array in given.items()})
        elif not self._named and len(given) == 1:
            (data,) = given.values()
        said = self._model.predict(data)
        if not hasattr(said, "items"):
            said = {self._outputs[0]["name"] if self._outputs else "output": said}
        return {str(name): np.asarray(array) for name, array in said.items()}

    def answer(self, bodies: list[bytes]) -> list[Scored]:
        """Return the answer to each request; a request that does not fit spoils no other."""
        answers: dict[int, Scored] = {}
        groups: dict[Any, list[Any]] = {}
        for index, body in enumerate(bodies):
            try:
                more, given = self._parse(body)
            except Exception as error:
                answers[index] = _refusal(f"neither a request that fits, nor an image: {error!r}")
            else:
                alike = tuple((name, one.dtype, one.shape[1:]) for name, one in given.items())
                groups.setdefault(alike, []).append((index, more, given))
        for group in groups.values():
            answers.update(self._together(group))
        return [answers[index] for index in range(len(bodies))]

    def _together(self, group: list[Any]) -> dict[int, Scored]:
        sizes = [len(next(iter(given.values()))) for _, _, given in group]
        answers, end = dict[int, Scored](), 0
        try:
            names = group[0][2]
            said = self._predict({n: np.concatenate([one[2][n] for one in group]) for n in names})
            if {len(array) for array in said.values()} != {sum(sizes)}:
                raise ValueError(f"it gives another number of rows than the {sum(sizes)} it gets")
            for (index, more, _), size in zip(group, sizes, strict=True):
                start, end = end, end + size
                outputs = [_tensor(name, array[start:end]) for name, array in said.items()]
                reply = json.dumps({**self._whose, **more, "outputs": outputs}).encode()
                answers[index] = (200, size, reply)
        except Exception as error:
            if len(group) == 1:
                return {group[0][0]: _refusal(f"the model refuses it: {error!r}")}
            return {k: v for one in group for k, v in self._together([one]).items()}
        return answers


def _dtype(datatype: str) -> np.dtype:
    return np.dtype("object" if datatype == "BYTES" else datatype.lower().replace("fp", "float"))


def _datatype(dtype: np.dtype) -> str:
    return dtype.name.upper().replace("FLOAT", "FP") if dtype.kind in "biuf" else "BYTES"


def _described(spec: Any, name: str) -> dict[str, Any]:
    of_tensor = hasattr(spec, "shape")
    dtype = np.dtype(spec.type if of_tensor else spec.type.to_numpy())
    shape = [int(size) for size in spec.shape] if of_tensor else [-1]
    return {"name": spec.name or name, "datatype": _datatype(dtype), "shape": shape}


def _tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    datatype = _datatype(array.dtype)
    data = [str(one) for one in array.ravel()] if datatype == "BYTES" else array.ravel().tolist()
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


def _refusal(why: str) -> Scored:
    return 400, 0, json.dumps({"error": why[:2000]}).encode()
