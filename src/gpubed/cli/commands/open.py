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
    print_url: Annotated[
        bool, typer.Option("--print", help="Print the URL with its token, open nothing.")
    ] = False,
) -> int:
    """Open JupyterLab in the browser."""
    ui, paths = UI(), find(cluster)
    granted, wanted = load_allocation(paths.allocation), from_file(paths.spec)
    url = services.token_url(paths, wanted, granted)
    if print_url:
        ui.raw(url + "\n")
        return 0
    if not webbrowser.open(url):
        ui.error("there is no browser on this machine", f"gpubed open {cluster} --print")
        return 3
    ui.note(f"the certificate is the cluster's own: {paths.state / 'jupyterlab.crt'}")
    return 0
