"""How-to pages, followed to the letter."""

import re
import shlex
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(page):
    """Return the command lines of a page, as lists of words."""
    lines = [line for block in _CONSOLE.findall((FOLDER / page).read_text())
             for line in block.splitlines()]  # fmt: skip
    assert all(line.startswith("$ gpubed ") for line in lines), page
    return [shlex.split(line.removeprefix("$ gpubed "), comments=True) for line in lines]


def follow(cluster, page, more=None):
    """Run a page's commands in their order, on a cluster that is up; all end with 0.

    Args:
        cluster: Stands for the page's; `init` makes a specification beside it.
        page: File name in docs/how-to.
        more: By option, what is added to its command.

    Returns:
        What each command printed, by its words without the cluster's name.
    """
    said = {}
    for verb, name, *words in commands(page):
        if verb == "init":
            assert not cluster.spec_path.with_name(name).exists()
            done = cluster.gpubed("init", f"{cluster.name}-anew", *words)
        else:
            added = [word for option, word in (more or {}).items() if option in words]
            done = cluster.gpubed(verb, cluster.name, *words, *added)
        said[" ".join((verb, *words))] = done.stdout
    return said
