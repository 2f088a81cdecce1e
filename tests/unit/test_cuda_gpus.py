"""Whether the GPUs of a node can run the recipe, as role cuda asks their driver (a STAND-IN)."""

import pytest

from gpubed.configuration import roles
from support.role_tasks import play
from support.specs import sample

pytestmark = pytest.mark.process

A100, V100 = "NVIDIA A100-SXM4-80GB, 8.0", "Tesla V100-SXM2-16GB, 7.0"


def asked(folder, gpus, rows):
    """Ask a node that has these GPUs, of which some were asked for."""
    return play(
        folder,
        "cuda",
        "preflight",
        programs={"nvidia-smi": f"cat <<'ROWS'\n{rows}ROWS"},
        gpubed_nodes=[{"name": "node-0", "gpus": gpus}],
        gpubed_head="node-0",
        **roles.inputs(sample("static", "cuda13", "all", 2), "cuda"),
    )


@pytest.mark.parametrize(("gpus", "refused"), [(4, ""), (5, "no code for node-0's Tesla V100")])
def test_gpus_that_nobody_asked_for_need_not_run_the_recipe(tmp_path, gpus, refused):
    rows = f"{A100}, 590.48.01\n" * 4 + f"{V100}, 590.48.01\n"
    done = asked(tmp_path, gpus, rows)
    assert bool(done.code) == bool(refused), done.said
    assert refused in done.said


def test_a_driver_that_is_too_old_is_refused(tmp_path):
    done = asked(tmp_path, 1, f"{A100}, 570.172.08\n")
    assert "node-0 has driver 570.172.08, but CUDA 13.2 needs 580.65.06" in done.said
