"""The SSH launcher on this machine: the connection to the head and horovodrun are STAND-INS."""

from pathlib import Path
from types import SimpleNamespace

from gpubed.jobs.launcher import Launch
from gpubed.jobs.launchers import ssh


def runner(monkeypatch, folder: Path, run: Path):
    """Return a function that starts a shell script in a run's folder as the head does."""
    program = folder / "bin/gpubed-horovodrun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(ssh, "on_head", lambda _cluster, script: ["sh", "-c", script])

    def start(script, on_output=lambda _line: None, unwanted=lambda: ""):
        cluster = SimpleNamespace(allocation=SimpleNamespace(with_ranks=()))
        job = Launch(str(run), ["sh", "-c", script], {"NAME": "a b"}, 1, unwanted)
        return ssh.create().run(cluster, job, on_output)

    return start
