"""The node images of this machine: built when one is missing, and kept when a cluster goes."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from gpubed.backends.local import build
from gpubed.backends.local.image import RELEASES, REPOSITORIES, Recipe, exists
from gpubed.backends.local.python_image import PythonImage
from gpubed.core.errors import GpubedError
from gpubed.core.paths import cache
from gpubed.recipes import recipe as software
from gpubed.testbeds.driver import Driver, Properties


class ImageDriver(Driver):
    """Inputs: image, runtime, simulate, software, digest."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Build the image unless this machine has it."""
        runtime = inputs.get("runtime", "container")
        recipe = Recipe(inputs["image"], runtime, inputs.get("simulate", False))
        named = inputs.get("software")
        tag = ensure(PythonImage(recipe, named) if named else recipe)
        return tag, {"tag": tag}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look whether this machine has the image."""
        return {"tag": id} if exists(id) else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Keep the image: other clusters may use it."""


def ensure(recipe: Recipe | PythonImage) -> str:
    """Build an image unless this machine has it; returns its tag."""
    if exists(recipe.tag):
        return recipe.tag
    if recipe.below:
        ensure(recipe.below)
    with _lock(recipe):
        if not exists(recipe.tag):
            recipe.build() if isinstance(recipe, PythonImage) else build.build(recipe)
    return recipe.tag


def restore(tag: str) -> None:
    """Build an image again that somebody removed from the cache."""
    for parts in product(RELEASES, REPOSITORIES, (False, True)):
        recipe = Recipe(*parts)
        found: list[Recipe | PythonImage] = [recipe]
        found += [PythonImage(recipe, name) for name in software.names()]
        for wanted in found:
            if wanted.tag == tag:
                ensure(wanted)
                return
    raise GpubedError(
        f"the node image {tag} is gone, and this version of gpubed builds another one",
        "gpubed down CLUSTER, then gpubed up CLUSTER",
    )


@contextmanager
def _lock(recipe: Recipe | PythonImage) -> Iterator[None]:
    # Two clusters that come up at the same time need one image, once.
    cache().mkdir(parents=True, exist_ok=True)
    kind = recipe.tag.partition(":")[2].rpartition("-")[0]
    if isinstance(recipe, PythonImage):
        kind += f"-{recipe.software}"
    with (cache() / f"image-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
