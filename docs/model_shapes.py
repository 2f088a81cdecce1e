"""Writes the shipped table of model shapes: `python docs/model_shapes.py`.

Runs in an interpreter with recipe cpu's torch and torchvision, and transformers (for BERT). The
table has torchvision's classification models as job imagenet trains them, Inception v3 without its
auxiliary head, as TensorFlow's benchmarks train it, and BERT with sequences of 128 tokens.
"""

from __future__ import annotations

import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import torch
import torchvision
from transformers import BertConfig, BertForPreTraining

PREDICTION = Path(__file__).parents[1] / "src" / "gpubed" / "prediction"
META = runpy.run_path(str(PREDICTION / "meta.py"))
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def vision(name: str, **settings: Any) -> dict[str, Any]:
    """Return the shape of a model of torchvision."""
    if name in ("googlenet", "inception_v3"):
        settings["init_weights"] = False
    size = 299 if name == "inception_v3" else 224
    try:
        with torch.device("meta"):
            network = torchvision.models.get_model(name, weights=None, **settings)
    except NotImplementedError:  # RegNets read numbers from tensors while they are made
        network = torchvision.models.get_model(name, weights=None, **settings).to("meta")
    return META["shape"](network, torch.empty(META["EXAMPLES"], 3, size, size, device="meta"))


def bert(**settings: Any) -> dict[str, Any]:
    """Return the shape of BERT."""
    with torch.device("meta"):
        network = BertForPreTraining(BertConfig(**settings))
        words = torch.zeros(META["EXAMPLES"], META["TOKENS"], dtype=torch.long)
    return META["shape"](network, {"input_ids": words})


if __name__ == "__main__":
    found = {name: vision(name) for name in torchvision.models.list_models(torchvision.models)}
    found["inception3"] = vision("inception_v3", aux_logits=False)
    found["bert-base"], found["bert-large"] = bert(), bert(**LARGE)
    text = json.dumps(found, separators=(",", ":")).encode()
    (PREDICTION / "data" / "shapes.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))
