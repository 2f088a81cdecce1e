"""A host that is a folder: scripts are the real ones, programs around them STAND-INS."""

import os
import subprocess
from types import SimpleNamespace

from gpubed.nodes.ssh import CommandFailed, CommandResult


class ShellHost:
    """Runs scripts as sh does on a host whose `/etc` and home are a test's own."""

    def __init__(self, folder):
        self.etc, self.home = folder / "etc", folder / "home"
        self.node = SimpleNamespace(name="node-0", control_address="192.0.2.7")
        self._folder, self._log = folder, folder / "called"
        for name in ("bin", "etc/systemd/system", "etc/gpubed/leave.d", "home"):
            (folder / name).mkdir(parents=True)
        self._log.write_text("")
        self.program("sudo", 'shift\nexec "$@"', told=False)

    def program(self, name, does="", *, told=True):
        """Put a stand-in for a program there; its calls are told unless said otherwise."""
        path = self._folder / "bin" / name
        log = f'echo "{name} $*" >>{self._log}\n' if told else ""
        path.write_text(f"#!/bin/sh\n# STAND-IN\n{log}{does}\n")
        path.chmod(0o755)

    @property
    def called(self):
        """The calls of stand-ins so far, in order."""
        return self._log.read_text().splitlines()

    def sh(self, script):
        """Run a script to its end and return what it left."""
        return subprocess.run(
            ["sh", "-c", script.replace("/etc/", f"{self.etc}/")],
            env={
                "PATH": f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(self.home),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, command, script, **_):
        """Do what a session's `run` does with a script; here it takes what time it takes."""
        assert command == "sh -c %s"
        done = self.sh(script)
        result = CommandResult(done.stdout, done.stderr, done.returncode, 0.0)
        if done.returncode:
            raise CommandFailed(self.node.name, "sh", result)
        return result
