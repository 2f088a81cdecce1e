"""Holds a model and answers batches of requests; runs in the model's own environment.

worker.py FOLDER. First it writes what the model takes and gives. Then it reads batches from stdin,
requests of the Open Inference Protocol or images, and writes a status and a reply for each.
"""

import json
import os
import struct
import sys
from io import BytesIO

import numpy as np

NAMES = {
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("INT", "int"), ("UINT", "uint"))
       for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BOOL": "bool",
    "BYTES": "object",
}  # fmt: skip
DATATYPES = {np.dtype(name): datatype for datatype, name in NAMES.items()}


class Invalid(Exception):
    """A request that the model cannot answer, and why."""


def read(stream):
    """Return the requests of the next batch; ends the process at the end of the stream."""
    count = stream.read(4)
    if len(count) < 4:
        sys.exit()
    return [
        stream.read(*struct.unpack("!I", stream.read(4)))
        for _ in range(*struct.unpack("!I", count))
    ]


class Model:
    """A registered model; requests that fit each other are answered together."""

    def __init__(self, folder):
        import mlflow.pyfunc  # after stdout is protected: it may print

        self.model = mlflow.pyfunc.load_model(folder)
        meta = self.model.metadata
        self.schema, output = meta.get_input_schema(), meta.get_output_schema()
        self.tensors = self.schema is None or self.schema.is_tensor_spec()
        self.inputs = [self._described(spec, "input") for spec in self.schema or ()]
        self.outputs = [self._described(spec, "output") for spec in output or ()]

    def _described(self, spec, name):
        kind = np.dtype(spec.type if hasattr(spec, "shape") else spec.type.to_numpy())
        shape = getattr(spec, "shape", (-1,))
        datatype = DATATYPES.get(kind, "BYTES")
        return {"name": spec.name or name, "datatype": datatype, "shape": [int(n) for n in shape]}

    def parse(self, body):
        """Return the id and the tensors of a request, or of an image."""
        try:
            if not body.lstrip().startswith(b"{"):
                return None, {self._only()["name"]: self._image(body)}
            request = json.loads(body)
            given = {
                one["name"]: np.asarray(one["data"], NAMES[one["datatype"]]).reshape(one["shape"])
                for one in request["inputs"]
            }
        except Invalid:
            raise
        except Exception as error:
            raise Invalid(f"no request of the Open Inference Protocol: {error!r}") from None
        if len(given) == 1 and len(self.inputs) == 1:  # the name of an only tensor says nothing
            given = {self.inputs[0]["name"]: next(iter(given.values()))}
        missing = {one["name"] for one in self.inputs} ^ set(given) if self.inputs else ()
        if missing or not given or len({len(np.atleast_1d(one)) for one in given.values()}) != 1:
            wanted = ", ".join(one["name"] for one in self.inputs)
            raise Invalid(f"the model takes {wanted or 'tensors'}, of one length")
        return request.get("id"), {name: self._fit(name, one) for name, one in given.items()}

    def _only(self):
        if len(self.inputs) != 1 or not self.tensors:
            raise Invalid("neither JSON nor an image, or the model takes no image")
        return self.inputs[0]

    def _image(self, body):
        from PIL import Image

        try:
            pixels = np.asarray(Image.open(BytesIO(body)))
        except Exception as error:
            raise Invalid(f"neither JSON nor an image: {error}") from None
        shape = [1, *self._only()["shape"][1:]]
        if -1 not in shape and pixels.size != np.prod(shape):
            raise Invalid(f"an image of the shape {pixels.shape}, the model takes {shape[1:]}")
        pixels = pixels.reshape(shape) if -1 not in shape else pixels[None]
        return pixels.astype(NAMES[self._only()["datatype"]])

    def _fit(self, name, array):
        for one in self.inputs:
            if one["name"] == name:
                kind, shape = np.dtype(NAMES[one["datatype"]]), one["shape"]
                if not np.can_cast(array.dtype, kind, "same_kind"):
                    raise Invalid(f"{name} is {one['datatype']}, not {DATATYPES[array.dtype]}")
                if len(shape) != array.ndim or any(
                    a not in (-1, b) for a, b in zip(shape, array.shape)
                ):
                    raise Invalid(
                        f"{name} has the shape {list(array.shape)}, the model takes {shape}"
                    )
                return array.astype(kind)
        return array

    def predict(self, given):
        """Return the model's outputs by name."""
        if not self.tensors:
            import pandas

            given = pandas.DataFrame({name: list(array) for name, array in given.items()})
        elif not self.schema or not self.schema.has_input_names():
            given = next(iter(given.values())) if len(given) == 1 else given
        said = self.model.predict(given)
        if hasattr(said, "columns"):
            return {str(name): said[name].to_numpy() for name in said.columns}
        named = (
            said
            if isinstance(said, dict)
            else {(self.outputs or [{"name": "output"}])[0]["name"]: said}
        )
        return {name: np.asarray(one) for name, one in named.items()}

    def answer(self, bodies):
        """Return status, number of rows and reply of each request."""
        replies, groups = [None] * len(bodies), {}
        for index, body in enumerate(bodies):
            try:
                id_, given = self.parse(body)
            except Invalid as error:
                replies[index] = refusal(400, error)
                continue
            like = tuple((name, one.dtype, one.shape[1:]) for name, one in given.items())
            groups.setdefault(like, []).append((index, id_, given))
        for group in groups.values():
            for index, reply in self._together(group):
                replies[index] = reply
        return replies

    def _together(self, group):
        sizes = [len(next(iter(given.values()))) for _, _, given in group]
        try:
            joined = {name: np.concatenate([g[name] for _, _, g in group]) for name in group[0][2]}
            said = self.predict(joined)
            if any(one.shape[:1] != (sum(sizes),) for one in said.values()):
                raise ValueError(
                    f"the model gives {[one.shape for one in said.values()]} for {sum(sizes)} rows"
                )
        except Exception as error:
            if len(group) == 1:
                return [(group[0][0], refusal(500, f"the model fails: {error!r}"))]
            return [reply for one in group for reply in self._together([one])]
        found, start = [], 0
        for (index, id_, _), size in zip(group, sizes):
            outputs = [tensor(name, one[start : start + size]) for name, one in said.items()]
            document = {"outputs": outputs, **({"id": id_} if id_ is not None else {})}
            found.append((index, (200, size, document)))
            start += size
        return found


def tensor(name, array):
    """Return an output as the protocol has it."""
    datatype = DATATYPES.get(array.dtype, "BYTES")
    data = array.ravel().tolist() if datatype != "BYTES" else [str(one) for one in array.ravel()]
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


def refusal(status, why):
    """Return the reply to a request that is not answered."""
    return status, 0, {"error": str(why)[:2000]}


def main():
    """Answers until stdin ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the model prints is not a reply
    folder, name, version = sys.argv[1:]
    model = Model(folder)
    about = {"name": name, "versions": [version], "platform": "mlflow_pyfunc"}
    first = json.dumps({**about, "inputs": model.inputs, "outputs": model.outputs}).encode()
    out.write(struct.pack("!I", len(first)) + first)
    out.flush()
    while True:
        for status, rows, document in model.answer(read(sys.stdin.buffer)):
            document.update({"model_name": name, "model_version": version} if status == 200 else {})
            reply = json.dumps(document).encode()
            out.write(struct.pack("!HII", status, rows, len(reply)) + reply)
        out.flush()


if __name__ == "__main__":
    main()
