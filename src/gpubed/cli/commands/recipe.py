"""gpubed recipe."""

from typing import Annotated

import typer
from typer import Argument

from gpubed.cli import completion
from gpubed.cli.options import Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import recipe_check
from gpubed.recipes import recipe
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed recipe check cuda13"
PLACE = ("Experiments", 30)
app = typer.Typer(help="Show, check and measure the pinned software stacks.", no_args_is_help=True)


Name = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="See `recipe list`.", autocompletion=completion.recipes),
]


@app.command("list")
def list_(as_json: Json = False) -> int:
    """List the recipes and the GPUs that they support."""
    ui, found = UI(as_json), [recipe.load(name) for name in recipe.names()]
    ui.document("recipe-list", {"recipes": [each.model_dump(by_alias=True) for each in found]})
    ui.table(
        ("recipe", "torch", "CUDA", "driver", "compute capabilities"),
        [
            (r.name, r.torch, r.cuda, r.gpus.driver and f"≥ {r.gpus.driver}", _gpus(r))
            for r in found
        ],
    )
    return 0


@app.command()
def show(name: Name, as_json: Json = False) -> int:
    """Show a recipe: its pinned packages, and the GPU code in them."""
    ui, found = UI(as_json), recipe.load(name)
    locked, measured = found.locked(), found.measured()
    ui.document(
        "recipe-show",
        {
            "recipe": found.model_dump(by_alias=True),
            "packages": {entry.name: entry.version for entry in locked},
            "architectures": {
                package: {library: code.model_dump() for library, code in libraries.items()}
                for package, libraries in measured.items()
            },
        },
    )
    ui.say(f"{found.name}: {found.description}")
    ui.say(f"Python {found.python}, torch {found.torch}, Horovod {found.horovod.version}")
    ui.say(f"CUDA {found.cuda or 'none'}, GPUs: {_gpus(found)}, {len(locked)} packages")
    ui.table(
        ("library", "machine code for", "PTX for"),
        [
            (library.rsplit("/", 1)[-1], " ".join(code.cubin), " ".join(code.ptx))
            for libraries in measured.values()
            for library, code in libraries.items()
        ],
    )
    return 0


@app.command()
def check(
    name: Name,
    cluster: str | None = Argument(
        None,
        metavar="CLUSTER",
        help="Compare this cluster's nodes, too.",
        autocompletion=completion.clusters,
    ),
    as_json: Json = False,
) -> int:
    """Check a recipe: its lock, GPU code, and a cluster's nodes."""
    ui, found = UI(as_json), recipe.load(name)
    results = list(recipe_check.check(found))
    if cluster is not None:
        results += recipe_check.check_nodes(found, load_cluster(find(cluster)))
    ui.document("recipe-check", {"checks": [result.model_dump() for result in results]})
    for result in results:
        subject = " ".join(filter(None, (result.id, result.node)))
        text = result.reason or f"{result.value} {result.unit}".strip()
        ui.mark(result.result, f"{subject}: {text}")
    return 1 if any(result.result == "fail" for result in results) else 0


@app.command()
def measure(name: Name, as_json: Json = False) -> int:
    """Record the GPU architectures of the packages. Downloads 3 GB."""
    ui, found, record = UI(as_json), recipe.load(name), {}
    for package, libraries in recipe_check.measure(found):
        ui.note(f"{package}: GPU code in {len(libraries)} libraries")
        record[package] = libraries
    recipe.write_record(found.record_path, record)
    lacking = recipe.unserved(found, record)
    ui.document("recipe-measure", {"file": str(found.record_path), "lacking": lacking})
    for line in lacking:
        ui.mark("fail", line)
    return 1 if lacking else 0


def _gpus(found: recipe.Recipe) -> str:
    return ", ".join(found.gpus.architectures) or "none"
