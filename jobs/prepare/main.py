"""Prepares a dataset on all ranks and writes `metrics.json`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path, PurePath

import horovod.torch as hvd
import pictures
import shards


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="folder of images by class")
    parser.add_argument("--dataset", required=True, help="name of the dataset to make")
    parser.add_argument("--size", type=int, default=256, help="shorter side in pixels")
    parser.add_argument("--quality", type=int, default=90, help="JPEG quality")
    parser.add_argument("--shard-mib", type=float, default=256, help="size of a shard")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPUBED_RUN_DIR", ".")))
    return parser.parse_args()


def main() -> None:
    """Runs one rank; the dataset is renamed to its final name when it is complete."""
    arguments = parse_arguments()
    # Written to the shared storage, as `GPUBED_DATASETS` may be read-only.
    root = Path(os.environ["GPUBED_SHARED"]) / "datasets"
    source, target = root / arguments.source, root / arguments.dataset
    if Path(arguments.dataset).name != arguments.dataset or arguments.dataset == "..":
        sys.exit(f"{arguments.dataset!r} is no name of a dataset: it is one folder in {root}")
    if not source.is_dir():
        sys.exit(f"there is no folder {source}")
    if target.exists():
        sys.exit(f"{target} exists already; remove it, or choose another name")
    try:
        found = {part: pictures.find(source / part) for part in pictures.parts(source) or [""]}
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    classes = next(iter(found.values()))[0]
    if apart := [part for part, (others, _) in found.items() if others != classes]:
        sys.exit(f"{source}/{apart[0]} does not have the classes that {source}/train has")
    hvd.init()
    started = time.monotonic()
    draft = root / f".{arguments.dataset}.part"
    if hvd.rank() == 0:
        shutil.rmtree(draft, ignore_errors=True)
        for part in found:
            (draft / part).mkdir(parents=True)
    hvd.barrier()
    everyone = {}
    for part, (_, samples) in found.items():
        # Shuffled once, equally on all ranks: a shard must not be all of one class.
        order = list(enumerate(samples))
        random.Random(arguments.seed).shuffle(order)  # noqa: S311  # an order, not a secret
        made = shards.pack(
            order[hvd.rank() :: hvd.size()],
            draft / part,
            f"{arguments.dataset}-{hvd.rank():03d}",
            size=arguments.size,
            quality=arguments.quality,
            shard_bytes=int(arguments.shard_mib * 2**20),
        )
        everyone[part] = hvd.allgather_object(told(made))
    if hvd.rank() == 0:
        finish(arguments, draft, target, classes, everyone, time.monotonic() - started)
    hvd.shutdown()


def told(made: shards.Packed) -> dict:
    """Returns a rank's results for the other ranks."""
    files = [path for shard in made.shards for path in (shard.path, shard.index)]
    return {
        "images": made.images,
        "broken": made.broken,
        "shards": [(one.path.name, one.images, one.path.stat().st_size) for one in made.shards],
        "digests": {path.name: _digest(path) for path in files},
    }


def finish(
    arguments: argparse.Namespace,
    draft: Path,
    target: Path,
    classes: list[str],
    everyone: dict[str, list[dict]],
    seconds: float,
) -> None:
    """Writes manifest, descriptions and metrics, and gives the dataset its name.

    Args:
        arguments: The job's arguments.
        draft: The dataset's folder until it is complete.
        target: Its folder then.
        classes: Names of the classes, equal in all parts.
        everyone: Results of `told` on each rank, by part; "" if the dataset has no parts.
        seconds: Duration.
    """
    made, digests = [], {}
    for part, ranks in everyone.items():
        packed = sorted(shard for each in ranks for shard in each["shards"])
        description = {
            "images": sum(each["images"] for each in ranks),
            "classes": classes,
            "shards": [name for name, _, _ in packed],
            "shard_images": [count for _, count, _ in packed],
        }
        text = json.dumps(description, indent=2) + "\n"
        (draft / part / "dataset.json").write_text(text)
        named = {name: digest for each in ranks for name, digest in each["digests"].items()}
        named["dataset.json"] = hashlib.sha256(text.encode()).hexdigest()
        digests |= {str(PurePath(part, name)): digest for name, digest in named.items()}
        made += packed
    images = sum(count for _, count, _ in made)
    broken = [name for ranks in everyone.values() for each in ranks for name in each["broken"]]
    for name in broken:
        print(f"cannot be read as an image: {name}")
    if not images:
        shutil.rmtree(draft)
        sys.exit(f"no image could be read; {target} was not made")
    manifest = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    (draft / "SHA256SUMS").write_text(manifest)
    draft.rename(target)
    metrics = {
        "images": images,
        "classes": len(classes),
        "shards": len(made),
        "bytes": sum(size for _, _, size in made),
        "broken_images": len(broken),
        "seconds": seconds,
        "images_per_s": images / seconds,
    }
    kept = arguments.out / ".metrics.json"
    kept.write_text(json.dumps(metrics, indent=2) + "\n")
    kept.rename(arguments.out / "metrics.json")
    print(f"{images} images of {len(classes)} classes in {len(made)} shards, {seconds:.1f} s")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
