"""Holds a model and answers batches of requests; runs in the model's own environment.

worker.py FOLDER NAME VERSION. First it writes what the model takes and gives. Then it reads batches
of requests from stdin (of the Open Inference Protocol, or images) and writes status, number of rows
and reply of each.
"""

import json
import os
import struct
import sys
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np

_NUMBERS = {
    f"{upper}{bits}": np.dtype(f"{lower}{bits}")
    for upper, lower in (("INT", "int"), ("UINT", "uint"), ("FP", "float"))
    for bits in (8, 16, 32, 64)
    if (upper, bits) != ("FP", 8)
}
DTYPES = {**_NUMBERS, "BOOL": np.dtype("bool"), "BYTES": np.dtype("object")}
DATATYPES = {dtype: datatype for datatype, dtype in DTYPES.items()}
Tensors = dict[str, np.ndarray]
Reply = tuple[int, int, dict[str, Any]]  # status, number of rows, document


class Invalid(Exception):
    """A request is none, or not one that the model can answer."""


class Model:
    """A registered model. Requests that fit each other are answered together."""

    def __init__(self, folder: str) -> None:
        import mlflow.pyfunc  # may print

        self._model = mlflow.pyfunc.load_model(folder)
        meta = self._model.metadata
        schema = meta.get_input_schema()
        self._columns = schema is not None and not schema.is_tensor_spec()
        self._named = schema is not None and schema.has_input_names()
        self.inputs = [_described(spec, "input") for spec in schema or ()]
        self.outputs = [_described(spec, "output") for spec in meta.get_output_schema() or ()]

    def _parse(self, body: bytes) -> tuple[dict[str, str], Tensors]:
        """Return what the reply repeats of a request, and its tensors."""
        try:
            if not body.lstrip().startswith(b"{"):
                return {}, self._image(body)
            request = json.loads(body)
            given = {
                one["name"]: np.asarray(one["data"], DTYPES[one["datatype"]]).reshape(one["shape"])
                for one in request["inputs"]
            }
            if len(given) == len(self.inputs) == 1:  # the name of the only tensor does not matter
                given = dict(zip([self.inputs[0]["name"]], given.values(), strict=True))
            for one in self.inputs:
                given[one["name"]] = given[one["name"]].astype(DTYPES[one["datatype"]])
            if len({len(array) for array in given.values()}) != 1:
                raise ValueError("its tensors have different lengths")
        except Exception as error:
            raise Invalid(f"neither a request that fits, nor an image: {error!r}") from None
        return {"id": request["id"]} if "id" in request else {}, given

    def _image(self, body: bytes) -> Tensors:
        from PIL import Image

        (one,) = self.inputs
        pixels = np.asarray(Image.open(BytesIO(body)))
        return {one["name"]: pixels.reshape([1, *one["shape"][1:]]).astype(DTYPES[one["datatype"]])}

    def _predict(self, given: Tensors) -> Tensors:
        data: Any = given
        if self._columns:
            import pandas as pd

            data = pd.DataFrame({name: list(array) for name, array in given.items()})
        elif not self._named and len(given) == 1:
            (data,) = given.values()
        said = self._model.predict(data)
        if not hasattr(said, "items"):
            said = {self.outputs[0]["name"] if self.outputs else "output": said}
        return {str(name): np.asarray(array) for name, array in said.items()}

    def answer(self, bodies: list[bytes]) -> list[Reply]:
        """Return the reply to each request."""
        replies: dict[int, Reply] = {}
        groups: dict[Any, list[Any]] = {}
        for index, body in enumerate(bodies):
            try:
                more, given = self._parse(body)
            except Invalid as error:
                replies[index] = _refusal(error)
            else:
                alike = tuple((name, one.dtype, one.shape[1:]) for name, one in given.items())
                groups.setdefault(alike, []).append((index, more, given))
        for group in groups.values():
            replies.update(self._together(group))
        return [replies[index] for index in range(len(bodies))]

    def _together(self, group: list[Any]) -> dict[int, Reply]:
        sizes = [len(next(iter(given.values()))) for _, _, given in group]
        try:
            names = group[0][2]
            said = self._predict({n: np.concatenate([one[2][n] for one in group]) for n in names})
            if {len(array) for array in said.values()} != {sum(sizes)}:
                raise ValueError(f"it gives another number of rows than the {sum(sizes)} it gets")
        except Exception as error:
            if len(group) == 1:
                return {group[0][0]: _refusal(f"the model refuses it: {error!r}")}
            return {k: v for one in group for k, v in self._together([one]).items()}
        replies, end = {}, 0
        for (index, more, _), size in zip(group, sizes, strict=True):
            start, end = end, end + size
            outputs = [_tensor(name, array[start:end]) for name, array in said.items()]
            replies[index] = (200, size, {**more, "outputs": outputs})
        return replies


def _described(spec: Any, name: str) -> dict[str, Any]:
    of_tensor = hasattr(spec, "shape")
    dtype = np.dtype(spec.type if of_tensor else spec.type.to_numpy())
    shape = [int(size) for size in spec.shape] if of_tensor else [-1]
    return {"name": spec.name or name, "datatype": DATATYPES.get(dtype, "BYTES"), "shape": shape}


def _tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    datatype = DATATYPES.get(array.dtype, "BYTES")
    data = [str(one) for one in array.ravel()] if datatype == "BYTES" else array.ravel().tolist()
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


def _refusal(why: object) -> Reply:
    return 400, 0, {"error": str(why)[:2000]}


def _read(stream: BinaryIO) -> list[bytes]:
    count = stream.read(4)
    if not count:
        sys.exit()
    sizes = (int.from_bytes(stream.read(4), "big") for _ in range(int.from_bytes(count, "big")))
    return [stream.read(size) for size in sizes]


def main() -> None:
    """Answers until stdin ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the model prints is no reply
    folder, name, version = sys.argv[1:]
    model = Model(folder)
    about = {"name": name, "versions": [version], "platform": "mlflow_pyfunc"}
    first = json.dumps({**about, "inputs": model.inputs, "outputs": model.outputs}).encode()
    out.write(struct.pack("!I", len(first)) + first)
    out.flush()
    while True:
        for status, rows, document in model.answer(_read(sys.stdin.buffer)):
            whose = {"model_name": name, "model_version": version}
            reply = json.dumps({**whose, **document}).encode()
            out.write(struct.pack("!HII", status, rows, len(reply)) + reply)
        out.flush()


if __name__ == "__main__":
    main()
