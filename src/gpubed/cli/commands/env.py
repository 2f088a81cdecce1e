"""gpubed env."""

import shlex

from gpubed import configure, stack
from gpubed.cli.options import Cluster, find
from gpubed.cli.ui import UI

EXAMPLE = 'eval "$(gpubed env lab)" && pulumi preview -s lab'


def command(cluster: Cluster) -> int:
    """Print `export` lines with which plain `pulumi` and `ansible-playbook` work."""
    paths = find(cluster)
    paths.project.prepare()
    stack.Stack(paths, stack.choose(None)).init()
    variables = {**stack.environment(paths), **configure.environment()}
    variables.pop("ANSIBLE_NOCOLOR")
    for name, value in variables.items():
        UI().raw(f"export {name}={shlex.quote(value)}\n")
    return 0
