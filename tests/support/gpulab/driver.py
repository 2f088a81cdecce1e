"""gpubed's command line with a test's own jobs and a short breath: `driver.py JOBS WORD...`."""

import sys
from pathlib import Path

from gpubed import cli
from gpubed.backends.gpulab import client
from gpubed.backends.gpulab.launcher import GpulabLauncher
from gpubed.jobs import jobfile

jobs, *words = sys.argv[1:]
# Whatever the job's name, one that needs no Horovod runs.
jobfile.folder = lambda _name: Path(jobs) / "quick"
GpulabLauncher.times = (0.05, 2, 0.5, 0.5)
client._BACKOFF_S = 0.01
sys.argv = ["gpubed", *words]
cli.main()
