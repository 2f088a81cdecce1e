"""What this GPU trains per second; kept for docs/reference/gpu-rates.md.

No other program may use the GPU meanwhile.
"""

import json
import subprocess

import pytest

from gpu.conftest import ROOT
from support import gpu_rates
from support.job_ranks import is_whole

pytestmark = pytest.mark.gpu


def test_rates_of_one_gpu(ranks):
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    points = list(gpu_rates.points())
    lines = [json.dumps(["--framework", "ddp", *gpu_rates.options(point)]) for point in points]
    folder = ranks.storage / "rates"
    folder.mkdir()
    done = subprocess.run(
        [ranks.python, ROOT / "tests/support/gpu_rate_runs.py", folder],
        input="\n".join(lines),
        env=ranks.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [
        json.loads((folder / str(number) / "metrics.json").read_text())
        for number in range(len(points))
    ]
    gpu_rates.keep(ranks.name, driver, list(zip(points, found, strict=True)))
    assert all(is_whole(metrics) for metrics in found)
