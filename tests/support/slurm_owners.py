"""Role slurm on a host that has an owner: its own tasks and scripts run.

Programs of the host are STAND-INS.
"""

import os

import pytest

from support import machines

ROLE = machines.ROOT / "roles/slurm"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="it writes files of root's")
GROUP, UUID = "researchers", "0f0e"
# gpubed-ann was made by the role, gpubed-bob by the owner.
PEOPLE = {
    "gpubed-ann": "gpubed-ann:x:20001:20001::/shared/home/gpubed-ann:/bin/bash",
    "gpubed-bob": "gpubed-bob:x:1005:100:Bob:/home/bob:/bin/zsh",
}


def getent(members="", people=PEOPLE, groups=()):
    """A STAND-IN for getent, as shell."""
    lines = "".join(
        f"passwd,{name}) echo '{line}' ;;\n" for name, line in people.items()
    ) + "".join(f"group,{name}) echo '{name}:x:{gid}:' ;;\n" for name, gid in groups)
    group = f"group,{GROUP}) echo '{GROUP}:x:990:{members}' ;;\n" if members is not None else ""
    return (
        "code=0; base=$1; shift\n"
        f'for name; do case "$base,$name" in\n{group}{lines}*) code=2 ;;\nesac; done\nexit $code'
    )


def put(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("the owner's\n")


def files(folder):
    return {path.name for path in folder.rglob("*") if path.is_file()}
