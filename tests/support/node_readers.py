"""What programs of a node read of its accounts: files in homes, processes, answers, a kernel's log.

They have no errors of gpubed's: whatever is read ends in data, or in words about that account.
"""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from support import exposition
from support.mutations import json_text

ROLES = Path(__file__).parents[2] / "roles"
sys.path += [str(ROLES / "health/files"), str(ROLES / "monitoring/files")]

from gpubed_health import keeping, xids  # noqa: E402
from gpubed_status import work  # noqa: E402
from gpubed_use import judging, jupyter, processes, program  # noqa: E402

SERVER = {"hostname": "*", "port": 8888, "secure": True, "base_url": "/", "token": "t", "pid": 1}
KERNEL = {"id": "k", "last_activity": "2030-01-01T00:00:00Z", "execution_state": "busy"}
RUN = "20300101-000000000-digits"
XID = b"1763704001.2 n kernel: NVRM: Xid (PCI:0000:af:00): 79, GPU has fallen off the bus.\n"


class Link:
    """STAND-IN for a connection to a server of JupyterLab."""

    body, status = b"[]", 200

    def __init__(self, host, port, **_):
        self.where = f"{host}:{int(port)}"

    def request(self, _verb, url, headers):
        (url + headers["Authorization"]).encode("latin-1")

    def getresponse(self):
        return self

    def read(self, most):
        return self.body[:most]


def _told(server, body, folder):
    """As the account, and then what root takes of that."""
    (folder / f"jpserver-{os.getpid()}.json").write_bytes(server)
    said, code = io.StringIO(), 0
    client = SimpleNamespace(HTTPConnection=Link, HTTPSConnection=Link, OK=200)
    with (
        mock.patch.object(jupyter.http, "client", client),
        mock.patch.object(Link, "body", body),
        contextlib.redirect_stdout(said),
    ):
        try:
            jupyter._tell(str(folder))
        except SystemExit as error:
            code, said = 1, io.StringIO(str(error))
    found = jupyter.read(code, said.getvalue().encode(errors="backslashreplace")[: 1 << 16])
    assert isinstance(found, list) or (found.isprintable() and len(found) < 1000)


def jupyter_server(data, folder):
    """A server's file in an account's home."""
    _told(data, json_text([KERNEL]), folder)


def jupyter_kernels(data, folder):
    """A server's answer."""
    _told(json_text(SERVER), data, folder)


def jupyter_answer(data, _folder):
    """What an account's own process says to root's."""
    for code in (0, 1):
        found = jupyter.read(code, data[: 1 << 16])
        assert isinstance(found, list) or (found.isprintable() and len(found) < 1000)


def _process(folder, **files):
    for number in ("1", "10"):
        (folder / number).mkdir(exist_ok=True)
        for name, content in {"stat": b"1 (x) S 1 " + b"0 " * 50, "cgroup": b"0::/"}.items():
            (folder / number / name).write_bytes(content)
    for name, content in files.items():
        (folder / "10" / name).write_bytes(content)
    return mock.patch.object(processes, "PROC", folder)


def process(data, folder):
    """A process's name and its control group."""
    with _process(folder, stat=data, cgroup=data):
        every = processes.every()
        processes.jobs(every)
        processes.people(every, 1)


def environment(data, folder):
    """A rank's environment, to the figures that Prometheus reads."""
    with _process(folder, environ=data):
        job = processes._run(10)
    _publish(job, folder)


def names(data, folder):
    """What an account and its jobs are called."""
    _publish(os.fsdecode(data), folder)


def _publish(name, folder):
    path = folder / "metrics" / "gpubed-use.prom"
    path.parent.mkdir(exist_ok=True)
    record = judging.first() | {"hours": {"1": [[name, name, 2.0, 2.0, 2.0]]}}
    with mock.patch.object(program, "METRICS", path):
        program.publish(record)
    read = exposition.read(path.read_bytes().decode())
    told = name.encode(errors="replace").decode()
    assert read["gpubed_use_seconds", ("job", told), ("of", "cpu"), ("user", told)] == 2.0


def kernel_log(data, folder):
    """The kernel's log, to the figures that Prometheus reads."""
    found = xids.read(data.decode(errors="replace"))
    path = folder / "gpubed-metrics.prom"
    figures = [keeping.Figure("x", xid.time, {"gpu": xid.gpu, "xid": xid.number}) for xid in found]
    keeping.publish(path, figures)
    exposition.read(path.read_bytes().decode())


def run_folder(data, folder):
    """The files of a run that the status page looks into."""
    run = folder / RUN
    run.mkdir()
    for name in (".progress", ".heartbeat", "slurm.log", "cluster.json"):
        (run / name).write_bytes(data)
    for row in work.runs([folder], 1.9e9, {RUN}):
        assert 0 <= (row["share"] or 0) <= 1
        assert len(row["progress"]) <= 160


def slurm_queue(data, _folder):
    """Slurm's queue, with the names that users gave to their jobs."""
    answered = subprocess.CompletedProcess((), 0, data)
    with (
        mock.patch.object(work.shutil, "which", return_value="squeue"),
        mock.patch.object(work.subprocess, "run", return_value=answered),
    ):
        work.queue()


# Name of the target, what reads it, and bytes that are right.
READERS = (
    ("jupyter-server", jupyter_server, json_text(SERVER)),
    ("jupyter-kernels", jupyter_kernels, json_text([KERNEL])),
    ("jupyter-answer", jupyter_answer, json_text([["k", "t", "busy"]])),
    ("process", process, b"10 (gpubed-rank) S 1 10 10 0 -1 " + b"7 " * 50),
    ("environment", environment, b"A=b\0GPUBED_HEARTBEAT=/shared/runs/run-1/.heartbeat\0"),
    ("names", names, 'mallory é"\\\n'.encode()),
    ("kernel-log", kernel_log, XID),
    ("run-folder", run_folder, b"progress: 3/10 steps, 5 images/s, data 0.4 ms, compute 2 ms\n"),
    ("slurm-queue", slurm_queue, b"7|mallory|RUNNING|1:00|1|a|b\n"),
)
