"""Trains on the digits over all ranks and writes `metrics.json`."""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path

import horovod.torch as hvd
from training import Settings, train


def parse_arguments() -> argparse.Namespace:
    """Reads the command line; the defaults are those of `Settings`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    parser.add_argument(
        "--batch", type=int, default=Settings.batch, help="images per rank and step"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=Settings.learning_rate, help="of one rank"
    )
    parser.add_argument("--dataset", default="", help="a dataset that job ingest filled")
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--register", default="", help="name to register the model by, in MLflow")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPUBED_RUN_DIR", ".")))
    return parser.parse_args()


def tell(of: int, done: int, rate: float) -> None:
    """Prints the progress in the form that gpubed shows."""
    if hvd.rank() == 0:
        print(f"progress: {done}/{of} epochs, {rate:.0f} images/s", flush=True)


def log_model(checkpoint: Path, register: str) -> None:
    """Logs the model where the cluster has MLflow; only a name that is asked for must be there."""
    if not (register or "MLFLOW_RUN_ID" in os.environ):
        return
    try:
        import model

        model.log(checkpoint, register)
    except Exception as error:
        if register:
            raise
        print(f"the model is not in MLflow: {error}", flush=True)


def main() -> None:
    """Runs one rank."""
    arguments = parse_arguments()
    given = arguments.dataset
    dataset = Path(os.environ["GPUBED_DATASETS"], given) if given else None
    hvd.init()
    metrics = train(
        Settings(
            epochs=arguments.epochs,
            batch=arguments.batch,
            learning_rate=arguments.learning_rate,
            seed=arguments.seed,
            checkpoint=arguments.out / "checkpoint.pt",
            dataset=dataset,
        ),
        on_epoch=partial(tell, arguments.epochs),
    )
    if hvd.rank() == 0:
        draft = arguments.out / ".metrics.json"
        draft.write_text(json.dumps(metrics, indent=2) + "\n")
        draft.rename(arguments.out / "metrics.json")
        log_model(arguments.out / "checkpoint.pt", arguments.register)
        print(
            f"{metrics['world_size']} ranks: test accuracy {metrics['test_accuracy']:.3f}, "
            f"{metrics['images_per_s']:.0f} images/s"
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
