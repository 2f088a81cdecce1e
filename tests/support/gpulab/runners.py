"""What a job's command runs in: a process of this machine (cheap), or a container."""

import os
import signal
import subprocess
from pathlib import Path

_GRACE_S = 10


class LocalRunner:
    """Runs commands on this machine, with no isolation: for quick tests of the protocol.

    Mounts are folders that the test makes; the image is a name that must be known.
    """

    def __init__(self, images=("tests/horovod:1",), path=""):
        self.images, self._path = images, path

    def start(self, job, log):
        docker = job.document["request"]["docker"]
        for mount in docker.get("storage", ()):
            target = Path(mount["containerPath"])
            if mount["hostPath"] != "tmpfs" and not target.is_dir():
                raise OSError(f"{target} is not there")
        command = docker.get("command", [])
        words = ["sh", "-c", command] if isinstance(command, str) else command
        environment = {
            "PATH": f"{self._path}:{os.environ['PATH']}",
            **{key: str(value) for key, value in docker.get("environment", {}).items()},
            **job.environment,
        }
        process = subprocess.Popen(
            words,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return _Process(process)


class _Process:
    def __init__(self, process):
        self._process = process

    def wait(self):
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def signal(self, number):
        if self._process.poll() is None:
            os.kill(self._process.pid, number)  # what PID 1 of a container would get

    def stop(self):
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


class ContainerRunner:
    """Runs each job in a container of its own: `docker run`, signals and exit codes are real."""

    def __init__(self, images, volumes, always=()):
        self.images, self._volumes, self._always = images, volumes, always

    def start(self, job, log):
        docker = job.document["request"]["docker"]
        name = f"gpulab-{job.uuid}"
        words = ["docker", "run", "--rm", "--init=false", "--name", name, *self._always]
        # Big enough for ten ranks that import torch on a machine with two cores.
        for mount in docker.get("storage", ()):
            if mount["hostPath"] == "tmpfs":
                words += ["--tmpfs", f"{mount['containerPath']}:size={mount['sizeGb']}g"]
            else:
                words += ["-v", f"{self._volumes[mount['hostPath']]}:{mount['containerPath']}"]
        for key, value in {**docker.get("environment", {}), **job.environment}.items():
            words += ["-e", f"{key}={value}"]
        command = docker.get("command", [])
        command = ["sh", "-c", command] if isinstance(command, str) else command
        process = subprocess.Popen(
            [*words, self.images[docker["image"]], *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return _Container(process, name)


class _Container:
    def __init__(self, process, name):
        self._process, self._name = process, name

    def wait(self):
        return self._process.wait()

    def signal(self, number):
        subprocess.run(
            ["docker", "kill", "--signal", str(int(number)), self._name],
            capture_output=True,
            check=False,
        )

    def stop(self):
        subprocess.run(["docker", "stop", self._name], capture_output=True, check=False)
