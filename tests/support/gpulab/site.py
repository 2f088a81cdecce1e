"""A whole site for a test: server, certificate, a project folder with one cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from support.gpulab.pki import Authority
from support.gpulab.runners import LocalRunner
from support.gpulab.server import Server
from support.gpulab.service import Service

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
IMAGE = "tests/horovod:1"
# Stands for Horovod's launcher where no Horovod is: starts the ranks, tells each its number, and
# puts that before each line.
LAUNCHER = """#!/usr/bin/env python3
import os, signal, subprocess, sys, threading
words = sys.argv[1:]
count = int(words[words.index("-np") + 1])
words = words[words.index("-H") + 2:]
signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
def tag(stream, start):
    for line in stream:
        sys.stdout.buffer.write(start + line)
        sys.stdout.flush()
ranks, readers = [], []
for number in range(count):
    told = {"HOROVOD_RANK": str(number), "HOROVOD_SIZE": str(count)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    rank = subprocess.Popen(words, env={**os.environ, **told}, **pipes)
    ranks.append(rank)
    for name in pipes:
        reader = (getattr(rank, name), f"[{number}]<{name}>:".encode())
        readers.append(threading.Thread(target=tag, args=reader))
        readers[-1].start()
codes = [rank.wait() for rank in ranks]
for reader in readers:
    reader.join()
code = next(filter(None, codes), 0)
sys.exit(code if code >= 0 else 128 - code)
"""


class Site:
    """A GPULab of a test's own; `call` runs gpubed as a user does."""

    def __init__(self, folder, runner=None, **service):
        self.folder = folder
        self.authority = Authority(folder / "pki")
        self.user = self.authority.user()
        self.storage = folder / "storage"
        self.storage.mkdir()
        if runner is None:
            programs = folder / "bin"
            programs.mkdir()
            (programs / "horovodrun").write_text(LAUNCHER)
            (programs / "horovodrun").chmod(0o755)
            runner = LocalRunner((IMAGE,), str(programs))
        logs = folder / "logs"
        logs.mkdir()
        self.service = Service(runner, logs, **service)
        self.server = Server(self.service, self.authority, self.authority.server())
        self.project = folder / "project"
        self.write("gl")

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)

    def spec(self, count=1, gpus=10, **backend):
        backend = {
            "type": "gpulab",
            "master": self.server.url,
            "certificate": str(self.user),
            "ca_bundle": str(self.authority.path),
            "project": "myproj",
            "image": IMAGE,
            "gpu_model": ["V100"],
            **({"jobs": "trials"} if count > 1 else {}),
            **backend,
        }
        return {
            "version": 1,
            "backend": {key: value for key, value in backend.items() if value is not None},
            "nodes": [
                {
                    "name": "job",
                    "count": count,
                    "gpus": gpus,
                    "machine": {"cpus": 4, "memory": "8 GB"},
                }
            ],
            "storage": {"shared": {"path": str(self.storage)}},
            "recipe": "cuda12",
            "lease": {"duration": "1 h"},
        }

    def write(self, name, spec=None, **changes):
        path = self.project / "inventories" / name / "cluster.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(spec or self.spec(**changes), sort_keys=False))
        return path

    @property
    def environment(self):
        return {**os.environ, "GPUBED_ROOT": str(self.project)}

    def command(self, words):
        """The command line itself; what runs jobs gets the tests' own, which need no Horovod."""
        if words[0] in ("run", "bench") and isinstance(self.service.runner, LocalRunner):
            return [sys.executable, str(HERE / "driver.py"), str(HERE / "jobs"), *words]
        return [str(BIN / "gpubed"), *words]

    def start(self, *words, **options):
        command = self.command(words)
        return subprocess.Popen(command, env=self.environment, text=True, **options)

    def call(self, *words, rc=0, cwd=None):
        command = self.command(words)
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, cwd=cwd
        )
        assert done.returncode == rc, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, verb, *words, **options):
        return json.loads(self.call(verb, "--json", *words, **options).stdout)
