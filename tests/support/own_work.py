"""A researcher's own scripts in a folder outside of the project, and ways in which one fails."""

import json
import shutil
import subprocess
from pathlib import Path

from support.cluster import BIN

SCRIPTS = Path(__file__).parents[1] / "e2e" / "own_work"

# Of `dies.py`: the kind of the cause, and how its message goes on behind the rank and its node.
WAYS = {
    "abort": ("signal", " was killed by SIGABRT"),
    "assertion": ("exception", ": AssertionError: one is not two"),
    "child": (
        "exception",
        ": subprocess.CalledProcessError: Command '['false']' returned non-zero",
    ),
    "early": ("exit", " ended first, or the others lost the connection to it"),
    "exit": ("exit", " ended with exit code 7"),
    "file": ("exception", ": FileNotFoundError: [Errno 2] No such file or directory: 'labels.csv'"),
    "files": ("exception", ": OSError: [Errno 24] Too many open files: '/dev/null'"),
    "float": ("signal", " was killed by SIGFPE"),
    "full": ("disk_full", " found no space left; full: /dev/shm ("),
    "gpu_memory": (
        "cuda_out_of_memory",
        " ran out of memory of GPU 0: asked for 2.00 GiB, 1.25 GiB of 79.11 GiB are free",
    ),
    "illegal": ("signal", " was killed by SIGILL"),
    "import": ("exception", ": ImportError: cannot import name 'nothing' from 'torch'"),
    "key": ("exception", ": KeyError: 'labels.csv' (dies.py:"),
    "kill": ("signal", " was killed by SIGKILL"),
    "library": ("missing_module", " lacks the library libnothing.so.1"),
    "memory": ("out_of_memory", " ran out of memory"),
    "module": ("missing_module", ": No module named 'einops': add it to requirements.txt"),
    "permission": (
        "exception",
        ": PermissionError: [Errno 13] Permission denied: '/etc/labels.csv'",
    ),
    "quit": ("exit", " ended "),  # by itself, or by the launcher, whichever is faster
    "recursion": ("exception", ": RecursionError: maximum recursion depth exceeded"),
    "segfault": ("signal", " was killed by SIGSEGV"),
    "shared_memory": ("disk_full", " ran out of shared memory: /dev/shm is too small"),
    "symbol": (
        "missing_module",
        " loads a library that was built for other versions: undefined symb",
    ),
    "unicode": ("exception", ": UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
    "value": ("exception", ": ValueError: invalid literal for int() with base 10: 'ten'"),
}


class Researcher:
    """Types commands of gpubed in a folder that has the scripts."""

    def __init__(self, cluster, folder: Path, scripts: str = "") -> None:
        self.cluster, self.folder = cluster, folder
        shutil.copytree(SCRIPTS / scripts, folder)

    def __call__(self, *words: str, rc: int = 0) -> subprocess.CompletedProcess[str]:
        """Run gpubed with words; demand its exit code."""
        done = subprocess.run(
            [str(BIN / "gpubed"), *words],
            cwd=self.folder,
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done

    def fails(self, way: str, *options: str) -> None:
        """Let rank 1 fail in one of `WAYS`; demand that its run tells it."""
        run = ("run", self.cluster.name, *options, "--json", "--", "python", "dies.py", way)
        cause = json.loads(self(*run, rc=1).stdout)["cause"]
        kind, words = WAYS[way]
        assert (cause["kind"], cause["rank"], cause["node"]) == (kind, 1, "node-1"), cause
        assert cause["message"].startswith(f"rank 1 on node-1{words}"), cause
        shown = self("runs", self.cluster.name, "show", "last", "--json").stdout
        assert json.loads(shown)["cause"] == cause
