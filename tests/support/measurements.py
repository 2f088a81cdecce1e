"""Campaigns as `gpubed bench` writes them, measured by a model instead of a cluster.

STAND-IN for nodes: a step is compute, then an allreduce of the gradients in 2(N-1) messages over
a ring (alpha and beta: latency and time per byte), then the next batch; noise is of a seed.
"""

import json
import random
from itertools import product

from gpubed.campaigns import matrix

GRADIENT_BYTES = 4_480_000  # a small network, of 1.12 million parameters
ALPHA_S = 0.0005
COMPUTE_S = {32: 0.4, 64: 0.8}
DATA_S = 0.01
GOODPUT = 0.94
RATES = {"100M": 100e6, "1G": 1e9, "10G": 10e9}
FACTORS = {"nodes": [1, 2, 3], "batch_size": [32, 64], "rate": ["100M", "1G"]}


def allreduce_s(nodes, rate):
    """Return what a ring needs."""
    per_byte = 8 / (RATES.get(rate, 1e8) * GOODPUT)
    return 2 * (nodes - 1) * (ALPHA_S + GRADIENT_BYTES / nodes * per_byte)


def efficiency(nodes, batch_size, rate):
    """Return what the model says, without noise."""
    alone = COMPUTE_S[batch_size] + DATA_S
    return alone / (alone + allreduce_s(nodes, rate))


def metrics(nodes, batch_size, rate, random_, slow=1.0):
    """Return what the job would write."""
    noise = random_.gauss(1, 0.005)
    each = [COMPUTE_S[batch_size] * noise * random_.gauss(1, 0.003) for _ in range(nodes)]
    each[-1] *= slow if nodes > 1 else 1.0
    median = sorted(each)[(nodes - 1) // 2]
    waited = max(each) - median
    communication = allreduce_s(nodes, rate) * random_.gauss(1, 0.01) + waited
    step = median + communication + DATA_S
    return {
        "images_per_s": nodes * batch_size / step,
        "step_s": step,
        "compute_s": median,
        "exposed_communication_s": communication,
        "data_s": DATA_S,
        "ranks": [
            {"rank": r, "host": f"node-{r}", "compute_s": s, "data_s": DATA_S}
            for r, s in enumerate(each)
        ],
        "gradient_bytes": GRADIENT_BYTES,
        "parameters": GRADIENT_BYTES // 4,
        "loss": 2.1,
        "world_size": nodes,
        "device": "cpu",
    }


def point(settings, repetition=0, found=None, **more):
    """Return a point file's content."""
    ended = {
        "schema": "gpubed/point/1",
        "id": matrix.identity(settings),
        "repetition": repetition,
        "status": "ok",
        "reason": "",
        "settings": settings,
        "run_id": "2026-11-23T100000Z-imagenet",
        "run_dir": ".gpubed/lab/runs/2026-11-23T100000Z-imagenet",
        "started": "2026-11-23T10:00:00Z",
        "seconds": 21.5,
        "metrics": found or {},
    }
    return ended | more


def document(name="smoke", factors=FACTORS, repeat=3, **more):
    """Return `campaign.json`."""
    nodes = [f"node-{number}" for number in range(3)]
    found = {
        "schema": "gpubed/campaign/1",
        "name": name,
        "job": "imagenet",
        "digest": "c0ffee",
        "seed": 1,
        "repeat": repeat,
        "factors": factors,
        "campaign": {
            "schema": "gpubed/campaign-file/1",
            "description": "A small matrix",
            "job": "imagenet",
            "factors": factors,
            "settings": {"steps": 20, "image_size": 32},
            "exclude": [],
            "repeat": repeat,
            "seed": 1,
        },
        "cluster": "lab",
        "uuid": "5b90f46f",
        "backend": "local",
        "recipe": "cpu",
        "gpubed": "0.1.0",
        "git": {"commit": "4aab6e7", "clean": True},
        "nodes": [
            {"name": node, "hardware": "2 CPUs, 8 GiB", "slots": 1, "gpus": 0} for node in nodes
        ],
        "links": [
            {"src": a, "dst": b, "declared_bps": 100_000_000, "measured_bps": 94_600_000.0}
            for a in nodes
            for b in nodes
            if a != b
        ],
        "simulated": False,
        "command": f"gpubed bench lab campaigns/{name}.yml",
        "started": "2026-11-23T10:00:00Z",
    }
    return found | more


def write(paths, campaign=None, points=None):
    """Write a campaign of a cluster; return its folder."""
    campaign = campaign or document()
    folder = paths.campaigns / campaign["name"]
    (folder / "points").mkdir(parents=True, exist_ok=True)
    (folder / "campaign.json").write_text(json.dumps(campaign))
    for one in measured(campaign) if points is None else points:
        put(folder, one)
    return folder


def put(folder, one):
    path = folder / "points" / f"{one['id']}.{one['repetition']}.json"
    path.write_text(json.dumps(one))
    return path


def measured(campaign, seed=1, slow=1.0, nodes=1, rate="100M"):
    """Yield every repetition of every point of a campaign."""
    random_ = random.Random(seed)
    factors = campaign["factors"]
    for values in product(*factors.values()):
        settings = dict(zip(factors, values, strict=True))
        if settings in campaign["campaign"].get("exclude", []):
            continue
        for repetition in range(campaign["repeat"]):
            found = metrics(
                settings.get("nodes", nodes),
                settings.get("batch_size", 32),
                settings.get("rate", rate),
                random_,
                slow,
            )
            yield point(settings, repetition, found)
