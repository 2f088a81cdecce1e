"""A recipe whose packages hold no compiler: role cuda finds one, or says so at once.

Other roles and apt are STAND-INS.
"""

import pytest

from gpubed.configuration import roles
from gpubed.recipes import recipe
from support.role_tasks import play
from support.specs import sample

pytestmark = pytest.mark.process

CUDA12 = recipe.load("cuda12")
MAJOR, MINOR = CUDA12.cuda.split(".")
NVCC = f"cuda-nvcc-{MAJOR}-{MINOR}"


def cuda(folder, entry, *, offered="", facts=(), **options):
    given = roles.inputs(sample("static", "cuda12", "all", 2), "cuda")
    return play(
        folder,
        "cuda",
        entry,
        programs={"apt-cache": offered and f"echo '{offered}'", "nvidia-smi": "exit 1"},
        facts={"python": {"version": {"major": 3, "minor": 11}}, **dict(facts)},
        **{
            **given,
            "gpubed_head": "node-0",
            "gpubed_state_dir": str(folder),
            **options,
        },
    )


def test_a_compiler_that_is_offered_brings_headers_and_libraries(tmp_path):
    offered = f"{NVCC} | {MAJOR}.{MINOR}.85-1 | there"
    done = cuda(tmp_path, "compiler_offer", offered=offered, tell=["cuda_nvcc_packages"])
    assert done.told["cuda_nvcc_packages"] == [NVCC, NVCC.replace("nvcc", "cudart-dev")], done.said
    assert not [call for call in done.calls if call.startswith("base.repository")]


@pytest.mark.parametrize(("release", "source"), [("12", "repository"), ("13", "components")])
def test_where_none_is_offered_a_source_is_added_and_then_it_is_refused(tmp_path, release, source):
    done = cuda(tmp_path, "compiler_offer", facts={"distribution_major_version": release}.items())
    assert [call for call in done.calls if call.startswith(f"base.{source} ")], done.said
    assert done.code != 0
    assert f"Recipe cuda12 needs a compiler of CUDA {MAJOR} on node-0" in done.said


def test_a_compiler_of_another_cuda_will_not_do(tmp_path):
    offered = "nvidia-cuda-toolkit | 11.8.89~11.8.0-5 | there"
    done = cuda(
        tmp_path, "compiler_offer", offered=offered, check=True, tell=["cuda_nvcc_packages"]
    )
    assert done.told["cuda_nvcc_packages"] == [], done.said
