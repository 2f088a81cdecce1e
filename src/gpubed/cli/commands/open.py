"""gpubed open."""

import webbrowser
from typing import Annotated

import typer

from gpubed import services
from gpubed.allocation import load as load_allocation
from gpubed.cli.options import Cluster, find
from gpubed.cli.ui import UI
from gpubed.plan import from_file

EXAMPLE = "gpubed open lab --print"


def command(
    cluster: Cluster,
    status: Annotated[
        bool, typer.Option("--status", help="The status page instead of JupyterLab.")
    ] = False,
    print_url: Annotated[
        bool, typer.Option("--print", help="Print the URL with its token, open nothing.")
    ] = False,
) -> int:
    """Open JupyterLab, or the status page, in the browser."""
    ui, paths = UI(), find(cluster)
    granted, wanted = load_allocation(paths.allocation), from_file(paths.spec)
    name = services.STATUS if status else "jupyterlab"
    url = services.token_url(paths, wanted, granted, name)
    if print_url:
        ui.raw(url + "\n")
        return 0
    if not webbrowser.open(url):
        again = f"gpubed open {cluster}{' --status' if status else ''} --print"
        ui.error("there is no browser on this machine", again)
        return 3
    if granted.nodes:
        ui.note(f"the certificate is the cluster's own: {paths.state / 'jupyterlab.crt'}")
    return 0
