"""gpubed ssh."""

import os
import signal
from collections.abc import Sequence
from types import FrameType

import typer
from typer import Argument
from typer.core import TyperCommand

from gpubed.cli import completion
from gpubed.cli.options import ClusterName, find
from gpubed.cli.ui import UI
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import interruption
from gpubed.nodes.allocation import Node
from gpubed.nodes.allocation import load as load_allocation
from gpubed.nodes.ssh import SSH, HostKeyMismatch, greet

EXAMPLE = "gpubed ssh lab head -- nproc"
PLACE = ("Work", 60)
_REFUSED = 255  # ssh's own exit code; a command's may be the same
_ANSWERS_S = 5.0
# Sent on to ssh; gpubed ends when ssh does.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Command(TyperCommand):
    """Takes the words after `--` as the command, even if no node is named before it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args[1:2] == ["--"]:
            args.insert(1, "head")
        return super().parse_args(ctx, args)


SETTINGS = {"cls": _Command, "context_settings": {"ignore_unknown_options": True}}


def command(
    name: ClusterName,
    node: str = Argument("head", help="A node's name, or `head`.", autocompletion=completion.nodes),
    words: list[str] | None = Argument(None, metavar="[-- COMMAND]"),
) -> int:
    """Open a shell on a node, or run a command there. The default is the head."""
    paths = find(name, from_state=True)
    named = load_allocation(paths.allocation).node(node)
    secret.require_key(paths)
    code = run_interactive(["ssh", "-F", str(paths.ssh_config), named.name, *(words or [])])
    if code == _REFUSED:
        _explain_host_key(UI(), paths, named)
    return code


def run_interactive(words: Sequence[str]) -> int:
    """Run an interactive program in the user's terminal and process group; return its exit code."""
    child = os.posix_spawnp(words[0], list(words), os.environ)

    def send_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    before = {number: signal.signal(number, send_on) for number in _FORWARDED}
    status = os.waitpid(child, os.WUNTRACED)[1]
    while os.WIFSTOPPED(status):  # stop as well, so that the shell gets the terminal
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)
        status = os.waitpid(child, os.WUNTRACED)[1]
    for number, handler in before.items():
        signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else interruption.EXIT - code


def _explain_host_key(ui: UI, paths: ClusterPaths, node: Node) -> None:
    """Show what to do if a node presents another host key; OpenSSH's own advice would not help."""
    with SSH(node, paths) as ssh:
        # `greet` would retry a node that does not answer.
        if not (node.via or ssh.answers(node.port, _ANSWERS_S)):
            return
    try:
        greet(node, paths)
    except HostKeyMismatch as error:
        ui.error(error.message, f"whatever OpenSSH proposes: {error.hint}")
    except GpubedError:
        pass  # ssh has reported it
