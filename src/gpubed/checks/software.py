"""Checks that every node has the recipe's packages, and every GPU can run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.utils import canonicalize_name
from pydantic import BaseModel

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.gpu_proof import Proof
from gpubed.checks.registry import Stage, at
from gpubed.core import reading
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check
from gpubed.recipes import recipe as recipes
from gpubed.recipes.recipe import Recipe

# Isolated (-I): neither the current folder nor PYTHONPATH may add packages.
_LIST = """%s/env/current/bin/python -I -c '
import json, sysconfig
from importlib.metadata import distributions
from packaging.markers import default_environment
# Not those that a service adds through a .pth file.
own = distributions(path=[sysconfig.get_path("purelib")])
packages = {found.metadata["Name"]: found.version for found in own}
print(json.dumps({"packages": packages, "environment": default_environment()}))'"""
_SHOWN = 3
_IDS = ("recipe.gpus", "recipe.driver")


class _Installed(BaseModel):
    packages: dict[str, str]
    environment: dict[str, str]


@at(Stage.SOFTWARE, "recipe.versions")
def packages(context: Context) -> Iterator[Check]:
    """Compare every package of the environment with the recipe's lock."""
    recipe = recipes.load(context.plan.spec.recipe)
    root = context.plan.spec.storage.shared.path

    def ask(_: Node, ssh: SSH) -> tuple[int, list[str]]:
        answer = ssh.run(_LIST, root, check=False)
        if answer.exit_code:
            return 0, [f"the environment does not answer: {answer.tail.splitlines()[-1:]}"]
        try:
            found = reading.reply(answer.stdout, "the list of packages").json(_Installed)
        except reading.Unreadable as error:
            return 0, [error.message]
        return len(found.packages), drift(recipe, found.packages, found.environment)

    for node, (count, differences) in context.on_each(ask):
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        why, limit = "; ".join(differences[:_SHOWN]) + more, f"those of recipe {recipe.name}"
        yield judged("recipe.versions", node.name, why, count, limit, "packages")


def drift(
    recipe: Recipe, installed: Mapping[str, str], environment: Mapping[str, str]
) -> list[str]:
    """Return the differences of installed packages from a recipe, as sentences.

    `environment` has the values of environment markers (packaging.markers.default_environment).
    """
    wanted = {entry.name: entry.version for entry in recipe.locked() if entry.applies(environment)}
    wanted["horovod"] = recipe.horovod.version
    # The local version after '+' tells how a package was built; recipes do not pin it.
    found: dict[str, str] = {
        canonicalize_name(name): text.split("+")[0] for name, text in installed.items()
    }
    return [
        f"{name} is {found.get(name, 'missing')}, the recipe has {wanted.get(name, 'none')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


@at(Stage.SOFTWARE)
def gpus(context: Context) -> Iterator[Check]:
    """The recipe has code for each GPU's generation, and each driver is new enough for it."""
    if not any(node.gpus for node in context.allocation.nodes):
        yield from skipped(_IDS, "the cluster asks for no GPU")
        return
    recipe = recipes.load(context.plan.spec.recipe)
    for node in context.allocation.nodes:
        facts = context.facts[node.name]
        driver = facts.driver.loaded if facts else None
        yield from on_node(recipe, node, context.proofs[node.name], driver)


def on_node(recipe: Recipe, node: Node, proof: Proof, driver: str | None) -> Iterator[Check]:
    """Compare the GPUs and the loaded driver of one node with a recipe."""
    if not node.gpus:
        yield from skipped(_IDS, "asks for no GPU", node.name)
        return
    idle = "" if proof.computing else "no GPU computes with the recipe's packages, see gpu.compute"
    capabilities = sorted({gpu.capability for gpu in proof.gpus})
    reasons = [why for why in (recipes.why_not(recipe, text) for text in capabilities) if why]
    models = ", ".join(sorted({f"{gpu.name} ({gpu.capability})" for gpu in proof.gpus})) or None
    limit = f"compute capabilities of {', '.join(recipe.gpus.architectures) or 'no GPU'}"
    yield judged("recipe.gpus", node.name, "; ".join(reasons) or idle, models, limit)
    if recipe.cuda is None:
        why = f"recipe {recipe.name} uses no GPU"
        yield Check(id="recipe.driver", node=node.name, result="skip", reason=why)
        return
    old = f"CUDA {recipe.cuda} needs a driver from {recipe.gpus.driver} on"
    right = driver is not None and recipe.gpus.accept(driver)
    limit = f"≥ {recipe.gpus.driver}, loaded in the kernel"
    yield judged("recipe.driver", node.name, idle if right else old, driver, limit)
