"""Why a run failed: what ranks print, and what their nodes write about their ends."""

import pytest

from gpubed.jobs.causes import End
from gpubed.jobs.rank_output import RankOutput

NODES = ["node-0", "node-1", "node-2"]
GIB = 2**30
# What ranks say that waited for another one.
LATER = [
    "Traceback (most recent call last):",
    '  File "/shared/runs/1-train/train.py", line 9, in <module>',
    "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused",
]
GLOO = [
    *LATER[:2],
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
    "peer [10.0.0.2]:31",
]
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total "
    "capacity of 15.77 GiB of which 14.62 GiB is free. Process 7 has 1.13 GiB memory in use."
)
WORKER = (
    "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly",
    "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",
    "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory.",
)
TORCHRUN = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "  exitcode  : -11 (pid: 9)",
    "  traceback : Signal 11 (SIGSEGV) received by PID 9",
]


def raises(message):
    return [*LATER[:2], message]


def ended(code, at=10.0, **more):
    return End(at=at, code=code, **more)


def output(said):
    """A run of three ranks that said so on stderr."""
    found = RankOutput(3)
    for rank, lines in said.items():
        for line in lines:
            found.read(f"[{rank}]<stderr>:{line}")
    return found


@pytest.mark.parametrize(
    ("said", "end", "kind", "message"),
    [
        ([], ended(-11), "signal", " was killed by SIGSEGV"),
        (TORCHRUN, ended(1), "signal", " was killed by SIGSEGV"),
        (
            ["python: can't open file '/home/u/a.py': [Errno 2] No such file", TORCHRUN[0]],
            ended(1),
            "exit",
            ": /home/u/a.py is not on its node; only the folder where gpubed is called is copied",
        ),
        (
            ["usage: train.py"],
            ended(2),
            "exit",
            " ended with exit code 2; its last line: usage: train.py",
        ),
        (
            ["No module named 'apex': using the fallback", "lr must be > 0"],
            ended(3),
            "exit",
            " ended with exit code 3; its last line: lr must be > 0",
        ),
        (
            ["lr must be > 0", "terminate called without an active exception"],
            ended(-6),
            "signal",
            " was killed by SIGABRT; its last line: lr must be > 0",
        ),
        (
            [
                '  File "/shared/runs/a/train.py", line 2',
                "    def (",
                "SyntaxError: invalid syntax",
            ],
            ended(1),
            "exception",
            ": SyntaxError: invalid syntax (train.py:2)",
        ),
        (
            [],
            ended(-9, memory={"limit": 4 * GIB, "peak": 4 * GIB}),
            "out_of_memory",
            " ran out of memory: 4 GiB of 4 GiB",
        ),
        (
            raises(WORKER[1]),
            ended(1, memory={"limit": None, "peak": 3 * GIB}),
            "out_of_memory",
            " ran out of memory at 3 GiB, and the kernel killed it (train.py:9)",
        ),
        (  # another process of its node was killed
            raises("KeyError: 'x'"),
            ended(1, memory={"limit": GIB, "peak": GIB}),
            "exception",
            ": KeyError: 'x' (train.py:9)",
        ),
        (
            raises(CUDA),
            ended(1),
            "cuda_out_of_memory",
            " ran out of memory of GPU 0: asked for 20.00 GiB, 14.62 GiB of 15.77 GiB are free "
            "(train.py:9)",
        ),
        (
            raises("RuntimeError: CUDA error: out of memory"),
            ended(1),
            "cuda_out_of_memory",
            " ran out of GPU memory (train.py:9)",
        ),
        (
            raises("OSError: [Errno 28] No space left on device: '/scratch/a.pt'"),
            ended(1, full={"/scratch": GIB}),
            "disk_full",
            " found no space left for /scratch/a.pt; full: /scratch (1 GiB) (train.py:9)",
        ),
        (
            raises("OSError: [Errno 122] Disk quota exceeded: '/shared/x'"),
            ended(1),
            "disk_full",
            " is over its quota for /shared/x (train.py:9)",
        ),
        (
            raises(WORKER[2]),
            ended(1, full={"/dev/shm": 64 * 2**20}),
            "disk_full",
            " ran out of shared memory: /dev/shm is too small for what it keeps there; full: "
            "/dev/shm (64 MiB) (train.py:9)",
        ),
        (
            raises("ModuleNotFoundError: No module named 'einops.layers'"),
            ended(1),
            "missing_module",
            ": No module named 'einops': add it to requirements.txt (train.py:9)",
        ),
        (
            raises("ImportError: /x/flash.so: undefined symbol: _ZN3c10"),
            ended(1),
            "missing_module",
            " loads a library that was built for other versions: undefined symbol _ZN3c10 "
            "(train.py:9)",
        ),
    ],
)
def test_the_cause_has_a_kind_and_words(said, end, kind, message):
    found = output({1: said}).cause(NODES, {1: end} if end else {})
    assert (found.kind, found.rank, found.node) == (kind, 1, "node-1")
    assert message is None or found.message == f"rank 1 on node-1{message}"


def test_the_earliest_of_several_causes_counts():
    found = output({0: raises("ValueError: late"), 2: raises("ValueError: early")})
    ends = {0: ended(1, at=20.5), 1: ended(-15, at=21), 2: ended(1, at=20.4)}
    cause = found.cause(NODES, ends)
    assert (cause.rank, cause.message[-22:]) == (2, "lueError: early (train.py:9)"[-22:])
    assert found.last_words[-1] == "ValueError: early"


def test_a_rank_that_ended_without_a_word_is_told_before_consequences():
    found = output({0: LATER, 1: GLOO}).cause(NODES, {0: ended(1, at=3), 1: ended(1, at=2)})
    assert found.message.endswith(" ended first, or the others lost the connection to it")
    assert (found.rank, found.kind) == (2, "exit")


def test_a_connection_of_the_scripts_own_that_breaks_blames_no_silent_rank():
    broken = [*LATER[:2], "ConnectionResetError: [Errno 104] Connection reset by peer"]
    ends = {0: ended(1, at=1), 1: ended(-15, at=2), 2: ended(-15, at=2)}
    assert output({0: broken}).cause(NODES[:2], {0: ends[0]}).rank == 0
    assert output({0: broken}).cause(NODES, ends).rank == 0


def test_of_consequences_alone_the_first_is_told():
    ends = {0: ended(1, at=3), 1: ended(1, at=2), 2: ended(1, at=4)}
    found = output({0: LATER, 1: GLOO, 2: LATER}).cause(NODES, ends)
    assert (found.rank, found.kind) == (1, "exception")
    assert "Connection closed by peer" in found.message


def test_a_run_that_stood_still_names_the_rank_that_did_not_come():
    warning = [
        "[2026-01-01 00:00:00.0: E /horovod/common/stall_inspector.cc:107] One or more tensors "
        "were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
        "for remainder of ranks for more than 60 seconds. This may indicate that ...",
        "Missing ranks:",
        "2!: [allreduce.grad.0, allreduce.grad.1 ...]",
        'One or more rank (marked by "!") is stalled for longer than 120 seconds. Will shutdown.',
    ]
    earlier = [*warning[:2], "1: [allreduce.loss]"]
    found = output({0: earlier + earlier + warning + LATER, 1: LATER})
    assert (found.missing, found.stalls) == ({2: "allreduce.grad.0"}, 2)
    cause = found.cause(NODES, {0: ended(1), 1: ended(1), 2: ended(-15, at=11)})
    assert (cause.kind, cause.rank, cause.node) == ("stall", 2, "node-2")
    assert cause.message == (
        "rank 2 on node-2 did not come to allreduce.grad.0, where others waited for 120 s"
    )
