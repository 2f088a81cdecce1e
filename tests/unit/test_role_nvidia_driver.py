"""The programs of the role nvidia_driver: what a change of driver would disturb."""

import os
import subprocess
import sys

import pytest

from gpubed.core.paths import assets

pytestmark = pytest.mark.process

FILES = assets() / "roles/nvidia_driver/files"


def busy(folder, answer, *before):
    """Return what gpubed-busy says; `answer` is a stand-in for nvidia-smi's."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n# STAND-IN: no GPU is here.\ncat <<'END'\n{answer}\nEND\n")
    program.chmod(0o755)
    return subprocess.run(
        [*before, "/bin/sh"],
        input=(FILES / "gpubed-busy").read_text(),  # another user may not read the checkout
        cwd="/",
        env={"PATH": f"{folder}{os.pathsep}/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("4711, python3", "process 4711 (python3, on a GPU)"),
        ("4711, [Not Found]", "process 4711 ([Not Found], on a GPU)"),
        ("[Not Found], [Not Found]", "process [Not Found] (on a GPU)"),
    ],
)
def test_every_process_on_a_gpu_is_work(tmp_path, answer, says):
    assert says in busy(tmp_path, answer).stdout.splitlines()


@pytest.mark.parametrize("answer", ["", "[N/A], [N/A]", "No running processes found"])
def test_no_process_is_no_work(tmp_path, answer):
    assert "on a GPU" not in busy(tmp_path, answer).stdout


def test_a_rank_is_work(tmp_path):
    waits = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, env={"HOROVOD_RANK": "0"}) as rank:
        said = busy(tmp_path, "").stdout
        rank.stdin.close()
    assert f"process {rank.pid} (" in said
    assert "HOROVOD_RANK=0" in said


def holders(root):
    done = subprocess.run(
        ["/bin/sh", FILES / "gpubed-holders", root], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "count", "held"),
    [
        ("nvidia_drm", None, []),
        ("nvidia_drm", "0", []),
        ("nvidia_drm", "1", ["the screen or"]),
        ("nouveau", "0", []),
        ("nouveau", "1", ["nouveau has t"]),
    ],
)
def test_a_console_holds_the_module(tmp_path, name, count, held):
    if count is not None:
        module = tmp_path / "sys/module" / name
        module.mkdir(parents=True)
        (module / "refcnt").write_text(f"{count}\n")
    assert [line[:13] for line in holders(tmp_path)] == held


def test_modules_of_others_hold_it(tmp_path):
    """Of storage and of networks; the driver's own go with it."""
    for name in ("gdrdrv", "nvidia_uvm", "nvidia_fs"):
        (tmp_path / "sys/module/nvidia/holders" / name).mkdir(parents=True)
    assert holders(tmp_path) == [
        "the kernel module gdrdrv uses the driver",
        "the kernel module nvidia_fs uses the driver",
    ]


def test_that_nvidia_smi_cannot_tell_is_not_nothing(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n# STAND-IN\necho 'Driver/library version mismatch' >&2\nexit 18\n"
    )
    program.chmod(0o755)
    command = ["/bin/sh", FILES / "gpubed-busy"]
    path = f"{tmp_path}{os.pathsep}/usr/bin:/bin"
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, check=False)
    assert done.returncode == 3
