"""A pretended driver for tests: the NVML library, compiled, and the text that it reads."""

import os
import subprocess

from simulated_gpus import IMAGE
from simulated_gpus.image import machine

MODELS = machine.models()


def model(name):
    return machine.load(IMAGE / "models" / f"{name}.json")


def compile_library(version, folder):
    subprocess.run(
        ["make", "-s", "-C", IMAGE / "nvml", f"VERSION={version}", f"DESTINATION={folder}"],
        check=True,
    )
    return folder


class Driver:
    """A node's driver, as programs that load libnvidia-ml.so.1 meet it."""

    def __init__(self, libraries, version, text):
        self.libraries = libraries
        self.version = version
        self.text = text

    def has(self, name, gpus=2, faults=(), module=...):
        pretended = machine.machine(model(name), gpus, "node-0", cpus=[0, 1, 2, 3])
        loaded = self.version if module is ... else module
        self.text.write_text(machine.nvml_text(pretended, faults, self.version, loaded))
        return pretended

    def run(self, *command, check=True):
        """Run a program on this driver and return what it did."""
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(self.libraries),
            "GPUBED_SIMULATION_NVML": str(self.text),
        }
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=check, timeout=60
        )
