"""Prints as JSON the versions that a Horovod wheel for this environment depends on.

Runs with the environment's own interpreter; reads package metadata only, since
importing torch takes seconds.
"""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

STAMP = Path(sys.prefix) / ".horovod"


def mpi_version() -> str:
    """The version of MPI on this node; empty if there is none."""
    try:
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    found = re.search(r"\(Open MPI\) (\S+)", said.stdout)
    return f"openmpi {found[1]}" if found else ""


sys.stdout.write(
    json.dumps(
        {
            "torch": version("torch"),
            "python": f"cp{sys.version_info.major}{sys.version_info.minor}",
            "mpi": mpi_version(),
            "installed": STAMP.read_text().strip() if STAMP.exists() else "",
        }
    )
)
