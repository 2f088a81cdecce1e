"""Trains a torchvision model over all ranks and writes `metrics.json`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import autotune
import data
import emulated
import model
import report
import torch
import transport
import transports
from averaging import Averaging, Horovod, Options, Unfit, place
from checkpoint import HOST_MEMORY
from keeping import Failed
from training import Training

# The rank's number of threads at its start; `share_processors` never exceeds it.
THREADS = torch.get_num_threads()
FRAMEWORKS = ("horovod", "ddp", "fsdp", "pipeline")
# Messages of Horovod, Gloo and NCCL about a rank that is gone.
ANOTHER_ENDED = (
    *("Horovod has been shut down", "Connection closed by peer", "Connection reset by peer"),
    *("Broken pipe", "remote process exited"),
)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Settings for GPUs alone, which CPUs would silently ignore.
ON_GPUS: tuple[tuple[str, Callable[[argparse.Namespace], bool], str], ...] = (
    ("precision=tf32", lambda given: given.precision == "tf32", "they have fp32"),
    ("transport=rdma", lambda given: given.transport == "rdma", "Gloo knows TCP alone"),
    (
        "hierarchical_allreduce",
        lambda given: given.hierarchical_allreduce,
        "Gloo sums in one way alone",
    ),
)


def truth(text: str) -> bool:
    """Reads `true` or `false`, as gpubed writes them."""
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def make_parser() -> argparse.ArgumentParser:
    """The command line; job.yml describes each option, and has the same defaults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--warmup-steps", type=int, default=10)
    parser.add_argument("--dataset")
    parser.add_argument("--validation")
    parser.add_argument("--loader-threads", type=int, default=4)
    parser.add_argument("--precision", choices=tuple(model.PRECISIONS), default="fp32")
    parser.add_argument("--channels-last", type=truth, default=False)
    parser.add_argument("--framework", choices=FRAMEWORKS, default="horovod")
    parser.add_argument("--overlap", type=truth, default=True)
    parser.add_argument("--compression", choices=("none", "fp16"), default="none")
    parser.add_argument("--transport", choices=tuple(transports.ASKED), default="auto")
    parser.add_argument("--backward-passes-per-step", type=int, default=1)
    parser.add_argument("--microbatches", type=int)
    parser.add_argument("--fusion-mb", type=float)
    parser.add_argument("--cycle-ms", type=float)
    parser.add_argument("--hierarchical-allreduce", type=truth, default=False)
    parser.add_argument("--autotune", type=truth, default=False)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--checkpoint")
    parser.add_argument("--checkpoint-steps", type=int, default=500)
    parser.add_argument("--checkpoints-kept", type=int, default=3)
    parser.add_argument("--emulate")
    parser.add_argument("--emulated-rate", type=float)
    parser.add_argument("--time-factor", type=float, default=1.0)
    parser.add_argument("--slow-node", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPUBED_RUN_DIR", ".")))
    return parser


def fault(given: argparse.Namespace) -> str:
    """Returns the first mistake in the arguments, found before ranks connect; empty if none."""
    if given.framework == "fsdp" and not given.overlap:
        return "overlap=false is for horovod and ddp: fsdp has no gradients to average at once"
    if given.hierarchical_allreduce and given.framework != "horovod":
        return "hierarchical_allreduce is Horovod's: ddp and fsdp leave it to NCCL"
    if not os.environ.get("GPUBED_DEVICE", "cpu").startswith("cuda"):
        for name, asks, why in ON_GPUS:
            if asks(given):
                return f"{name} is for GPUs, and this rank computes on a CPU: {why}"
    if given.emulate or given.time_factor != 1 or given.slow_node:
        return emulated.fault(given)
    size, images = model.image_size(given.model, given.image_size), given.batch_size
    if given.framework == "pipeline":
        if why := pipeline_fault(given, place()[1]):
            return why
        images //= microbatches(given, place()[1])
    elif given.microbatches:
        return "microbatches is for framework=pipeline"
    return model.fault(given.model, size, images)


def microbatches(given: argparse.Namespace, ranks: int) -> int:
    """The microbatches of a batch: by default as many as divide it, up to two for each rank."""
    fitting = (n for n in range(1, 2 * ranks + 1) if given.batch_size % n == 0)
    return given.microbatches or max(fitting)


def pipeline_fault(given: argparse.Namespace, ranks: int) -> str:
    """Returns why a pipeline cannot train with these arguments; empty if it can."""
    count, batch = microbatches(given, ranks), given.batch_size
    faults: tuple[tuple[object, str], ...] = (
        (given.precision == "fp16", "precision=fp16, as ranks would scale losses apart; take bf16"),
        (not given.overlap, "overlap=false, as it averages no gradients"),
        (given.compression == "fp16", "compression=fp16; its tensors travel as precision says"),
        (given.backward_passes_per_step > 1, "backward_passes_per_step; raise microbatches"),
        (given.validation, "validation, as no rank has the whole model"),
        (batch % count, f"batch_size={batch} that does not divide into microbatches={count}"),
        (
            count < ranks,
            f"batch_size={batch} in microbatches={count} on {ranks} ranks, some without work; take "
            f"microbatches={ranks} or more, and a multiple of it as batch_size",
        ),
    )
    return next((f"framework=pipeline is not for {why}" for wrong, why in faults if wrong), "")


def averaging_of(given: argparse.Namespace) -> Averaging:
    """Joins the other ranks with the framework that was asked for."""
    options = Options(
        overlap=given.overlap,
        compression=given.compression == "fp16",
        passes=given.backward_passes_per_step,
        fusion_mb=given.fusion_mb,
        cycle_ms=given.cycle_ms,
        hierarchical=given.hierarchical_allreduce,
        autotune=given.autotune,
        microbatches=microbatches(given, place()[1]),
        folder=given.out,
    )
    if given.framework == "horovod":
        return Horovod(options)
    if given.framework == "pipeline":
        # Imported here, as it loads slowly.
        import stages

        size = model.image_size(given.model, given.image_size)
        images = given.batch_size // options.microbatches, 3, size, size
        return stages.Pipeline(options, images, model.PRECISIONS[given.precision])
    # Imported here, as it loads slowly and only DDP and FSDP need it.
    import torch_averaging

    chosen = {"ddp": torch_averaging.DDP, "fsdp": torch_averaging.FSDP}
    return chosen[given.framework](options)


def device_of_this_rank(precision: str) -> torch.device:
    """The device that `gpubed-rank` chose; for an unusable GPU there is no fallback to CPU."""
    device = torch.device(os.environ.get("GPUBED_DEVICE", "cpu"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # For images of one size, the search for the fastest convolution pays off.
        torch.backends.cudnn.benchmark = True
        round_factors(wanted=precision == "tf32")
    return device


def round_factors(*, wanted: bool) -> None:
    """Lets tensor cores round factors to TF32's 10 bits of mantissa, or not.

    By default, torch does so only in convolutions, so that fp32 would compute differently on GPUs
    from Ampere on than on older ones.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(convolutions, "conv"):  # torch 2.9 and later, which warn of the older names
        products.fp32_precision = convolutions.conv.fp32_precision = "tf32" if wanted else "ieee"
    else:
        products.allow_tf32 = convolutions.allow_tf32 = wanted


def share_processors(averaging: Averaging) -> None:
    """Divides the cores of a machine among its ranks, also if they are in several containers.

    A container may use no more than its own part of the cores: the rank's number of threads at its
    start (OMP_NUM_THREADS).
    """
    boot_id, own = BOOT_ID.read_text(), os.sched_getaffinity(0)
    there = [cores for machine, cores in averaging.gather((boot_id, own)) if machine == boot_id]
    # Ranks that are bound to cores of their own have divided them already.
    share = len(set().union(*there)) // len(there)
    torch.set_num_threads(max(1, min(THREADS, share, len(own))))


def too_large(given: argparse.Namespace, device: torch.device, error: Exception) -> str:
    """The error message for a rank that runs out of memory."""
    size = model.image_size(given.model, given.image_size)
    said = (
        f"{given.model} with batch_size {given.batch_size}, images of {size} x {size} pixels "
        f"and {given.precision} does not fit into memory"
    )
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        taken = torch.cuda.memory_allocated(device)
        said += (
            f": {taken / 1e9:.1f} GB taken and {free / 1e9:.1f} GB free "
            f"of the GPU's {total / 1e9:.1f} GB"
        )
    return f"{said}; try --set batch_size={max(1, given.batch_size // 2)} ({first_line(error)})"


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def train(given: argparse.Namespace, device: torch.device) -> None:
    """Runs one rank."""
    transport.choose(given.transport, device, given.out)
    averaging = averaging_of(given)
    share_processors(averaging)
    training = Training(given, averaging, device)
    training.run()
    figures = report.metrics(training)
    if averaging.rank == 0:
        report.write(figures, given.out)
        step, gradients, data = (
            "not known" if figures[name] is None else f"{1000 * figures[name]:.0f} ms"
            for name in ("step_s", "exposed_communication_s", "data_s")
        )
        how = f"emulated compute of {given.emulate}: " if given.emulate else ""
        print(f"{how}{figures['images_per_s']:.1f} images/s, step {step}")
        print(f"of it, waiting for gradients {gradients}, for data {data}")
        if averaging.searching_steps:
            print(autotune.told(averaging.tuned()))
    averaging.close()


def words(error: Exception, given: argparse.Namespace, device: torch.device) -> str:
    """The error message for what ended this rank; empty if only a traceback helps."""
    said = str(error)
    if isinstance(error, data.Unusable | Failed | Unfit):
        return said
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or HOST_MEMORY in said:
        return too_large(given, device, error)
    if any(sign in said for sign in ANOTHER_ENDED):
        return "another rank has ended, so this one does; what it said last tells why"
    if given.transport != "auto" and "NCCL" in said:
        return f"NCCL does not start with transport={given.transport} here: {first_line(error)}"
    return ""


def main() -> int:
    """Runs one rank; returns its exit code."""
    given = make_parser().parse_args()
    if why := fault(given):
        print(why, file=sys.stderr)
        return 2
    device = device_of_this_rank(given.precision)
    try:
        train(given, device)
    except (data.Unusable, Failed, Unfit, MemoryError, OSError, RuntimeError) as error:
        said = words(error, given, device)
        print(said or traceback.format_exc(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without Python's finalization: after a failure Horovod's shutdown would wait for ranks that
    # wait for this one, and threads of torch's Gloo may abort it (pytorch/pytorch#179291).
    os._exit(code)
