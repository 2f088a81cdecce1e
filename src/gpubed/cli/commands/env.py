"""gpubed env."""

import shlex

from gpubed import configure, stack
from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI

EXAMPLE = 'eval "$(gpubed env lab)" && pulumi preview -s lab'


def command(cluster: Cluster, as_json: Json = False) -> int:
    """Print `export` lines with which plain `pulumi` and `ansible-playbook` work."""
    ui, paths = UI(as_json), find(cluster)
    paths.project.prepare()
    stack.Stack(paths, stack.choose(None)).init()
    variables = {**stack.environment(paths), **configure.environment()}
    variables.pop("ANSIBLE_NOCOLOR")
    ui.document("env", {"variables": variables})
    if not as_json:
        ui.raw("".join(f"export {k}={shlex.quote(v)}\n" for k, v in variables.items()))
    return 0
