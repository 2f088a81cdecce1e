"""gpubed env."""

import locale
import shlex
from contextlib import suppress

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.configuration import configure
from gpubed.engines import stack

EXAMPLE = 'eval "$(gpubed env lab)" && pulumi preview -s lab'
PLACE = ("Cluster", 100)


def command(name: ClusterName, as_json: Json = False) -> int:
    """Print variables for plain Pulumi and Ansible. Evaluate the lines in a shell."""
    ui, paths = UI(as_json), find(name)
    paths.prepare()
    stack.Stack(paths, stack.choose(None)).init()
    variables = {
        **stack.environment(paths),
        **configure.environment(),
        **dict.fromkeys(stack.UNSET, ""),
    }
    variables.pop("ANSIBLE_NOCOLOR")
    if _speaks_utf8():  # Ansible takes the user's locale
        variables.pop("LC_ALL")
    ui.document("env", {"variables": variables})
    if not as_json:
        for key, value in variables.items():
            ui.raw(f"export {key}={shlex.quote(value)}\n" if value else f"unset {key}\n")
    return 0


def _speaks_utf8() -> bool:
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
        return locale.nl_langinfo(locale.CODESET) == "UTF-8"
    return False
