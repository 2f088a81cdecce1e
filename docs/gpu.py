"""The page docs/reference/gpu.md: which driver each GPU gets, and how far that was tested.

The GPUs are the models that nodes can pretend to have; the choice is `drivers.choose`, on
what role nvidia_driver knows of package sources; the outcomes are those that tests kept.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

from gpubed.backends.local.spec_checks import facts_of
from gpubed.hardware import nvidia_driver
from gpubed.hardware.facts import Facts
from gpubed.recipes import recipe
from gpubed.recipes.recipe import Recipe
from gpubed.spec.clusterspec import systems
from simulated_gpus import Model, models

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {name: name.replace("-", " ").capitalize() for name in systems()}
HEAD = """# GPUs

Which driver role [nvidia_driver](../../roles/nvidia_driver/README.md) chooses, by GPU, recipe
and operating system: for machines with eight GPUs and none of their drivers yet.
A driver that is there and serves them stays.

- `580 nvidia, open`: branch, whose packages (the distribution's, or NVIDIA's repository), kernel
  module.
- *FM*: with Fabric Manager of the same version, for the NVSwitches between the GPUs.
- *real*, *simulated*: a whole cluster came up, was verified and ran a job, on such GPUs or on
  nodes that [pretend](../how-to/first-gpu-cluster.md#rehearse-without-a-gpu) to have them.
  Neither happened where it says *untested*; after *changed since*, not with what is here now.

The last rows are machines and clusters for which more than their GPUs' model counts.

A simulation does not show that kernels compute, how fast anything is, or that NVIDIA's module
loads.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_rows(), ""])


def _rows() -> Iterator[str]:
    yield f"| GPU | recipe | CUDA | {' | '.join(DISTRIBUTIONS.values())} |"
    yield "| --- " * (3 + len(DISTRIBUTIONS)) + "|"
    for model in models().values():
        for name in recipe.with_gpus():
            yield _row(model, recipe.load(name))
    volta, hopper = (
        facts_of(model, model.most)
        for model in (models()[name] for name in ("V100-SXM2-32GB", "H100-SXM5-80GB"))
    )
    dgx_2 = volta.model_copy(update={"nvswitches": hopper.nvswitches})
    yield _special("V100-SXM3-32GB (DGX-2)", {"node": dgx_2})
    yield _special("V100-SXM2-32GB and H100-SXM5-80GB", {"node-0": volta, "node-1": hopper})


def _special(title: str, nodes: dict[str, Facts]) -> str:
    """Return a row of what no simulation of one model covers, for the recipe of old GPUs."""
    of = recipe.load("cuda12")
    cells = [_cell(title, nodes, of, image) for image in DISTRIBUTIONS]
    return f"| {title} | {of.name} | {of.cuda} | {' | '.join(cells)} |"


def _row(model: Model, of: Recipe) -> str:
    if recipe.why_not(of, model.compute_capability):
        reason = f"no code for compute capability {model.compute_capability}"
        cells = [reason] + [""] * (len(DISTRIBUTIONS) - 1)
    else:
        nodes = {"node": facts_of(model, model.most)}
        cells = [_cell(model.model, nodes, of, image) for image in DISTRIBUTIONS]
    return f"| {model.model} | {of.name} | {of.cuda} | {' | '.join(cells)} |"


def _cell(title: str, nodes: dict[str, Facts], of: Recipe, image: str) -> str:
    wanted = nvidia_driver.Wanted.of(of.cuda, of.gpus.driver)
    try:
        choice = nvidia_driver.choose(nodes, nvidia_driver.offers(image), wanted)
    except nvidia_driver.NoDriver as error:
        return f"none: {error.message}: {error.hint}"
    kinds = {"open" if name in choice.open_module else "proprietary" for name in nodes}
    kind = " and ".join(sorted(kinds))
    manager = ", FM" if choice.fabric_manager else ""
    tested = RESULTS["described"](title, of.name, image)
    return f"{choice.branch} {choice.source}, {kind}{manager} ({tested})"


RESULTS = runpy.run_path(str(ROOT / "tests" / "support" / "gpu_results.py"))
