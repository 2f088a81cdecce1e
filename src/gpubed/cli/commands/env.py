"""gpubed env."""

import shlex

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.configuration import configure
from gpubed.engines import stack

EXAMPLE = 'eval "$(gpubed env lab)" && pulumi preview -s lab'


def command(name: ClusterName, as_json: Json = False) -> int:
    """Print `export` and `unset` lines with which plain `pulumi` and `ansible-playbook` work."""
    ui, paths = UI(as_json), find(name)
    paths.project.prepare()
    stack.Stack(paths, stack.choose(None)).init()
    variables = {
        **stack.environment(paths),
        **configure.environment(),
        **dict.fromkeys(stack.UNSET, ""),
    }
    variables.pop("ANSIBLE_NOCOLOR")
    ui.document("env", {"variables": variables})
    if not as_json:
        ui.raw("".join(_line(name, value) for name, value in variables.items()))
    return 0


def _line(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}\n" if value else f"unset {name}\n"
