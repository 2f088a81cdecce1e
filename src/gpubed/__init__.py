"""gpubed turns a testbed into a ready, verified Horovod GPU cluster."""

from importlib.metadata import version

__version__ = version("gpubed")
