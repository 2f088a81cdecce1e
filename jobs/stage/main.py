"""Stages a dataset on every node and writes `metrics.json`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import staging


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True, help="folder in the cluster's datasets")
    parser.add_argument("--streams", type=int, default=4, help="files at once per node")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPUBED_RUN_DIR", ".")))
    return parser.parse_args()


def manifest_of(source: Path) -> tuple[dict[str, str], str]:
    """Returns the dataset's manifest and its mark, the digest of the manifest as a file.

    If there is no manifest, all ranks together compute it.
    """
    path = source / staging.MANIFEST
    text = path.read_bytes() if hvd.rank() == 0 and path.exists() else None
    # By default Horovod names it after its type, which differs between the ranks.
    given = hvd.broadcast_object(text, name="manifest")
    if given is not None:
        return staging.read_manifest(os.fsdecode(given)), hashlib.sha256(given).hexdigest()
    mine = staging.files(source)[hvd.rank() :: hvd.size()]
    found = hvd.allgather_object([(name, staging.digest(source / name)) for name in mine])
    manifest = dict(sorted(pair for pairs in found for pair in pairs))
    text = os.fsencode(staging.write_manifest(manifest))
    return manifest, hashlib.sha256(text).hexdigest()


def main() -> None:
    """Runs one rank; the first of each node copies."""
    arguments = parse_arguments()
    source = Path(os.environ["GPUBED_DATASETS"]) / arguments.dataset
    scratch = os.environ["GPUBED_SCRATCH"]
    if not scratch:
        sys.exit("the cluster has no scratch: add `scratch: {}` to storage in cluster.yml")
    if not source.is_dir():
        sys.exit(f"there is no dataset {source}")
    hvd.init()
    manifest, mark = manifest_of(source)
    started, copied = time.monotonic(), []
    if hvd.local_rank() == 0:
        target = Path(scratch) / "datasets" / arguments.dataset
        copied = staging.stage(source, target, manifest, mark, arguments.streams)
    mine = {
        "node": os.uname().nodename,
        "seconds": time.monotonic() - started,
        "bytes": sum(file.bytes for file in copied),
        "wrong": [file.name for file in copied if not file.right],
        "copies": hvd.local_rank() == 0,
    }
    nodes = [each for each in hvd.allgather_object(mine) if each["copies"]]
    if hvd.rank() == 0:
        report(arguments.out, source, manifest, nodes)
    hvd.shutdown()


def report(out: Path, source: Path, manifest: dict[str, str], nodes: list[dict]) -> None:
    """Writes `metrics.json`, and prints the files that differ from the manifest."""
    seconds = max(node["seconds"] for node in nodes)
    copied = sum(node["bytes"] for node in nodes)
    metrics = {
        "nodes": len(nodes),
        "files": len(manifest),
        "bytes": sum((source / name).stat().st_size for name in manifest),
        "copied_bytes": copied,
        "seconds": seconds,
        "bytes_per_s": copied / seconds,
        "wrong_files": sum(len(node["wrong"]) for node in nodes),
    }
    for node in nodes:
        for name in node["wrong"]:
            print(f"{node['node']}: {source / name} does not have the checksum of its manifest")
    draft = out / ".metrics.json"
    draft.write_text(json.dumps(metrics, indent=2) + "\n")
    draft.rename(out / "metrics.json")
    print(
        f"{len(manifest)} files on {len(nodes)} nodes, {copied / 2**20:.1f} MiB in {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
