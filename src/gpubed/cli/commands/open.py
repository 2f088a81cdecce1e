"""gpubed open."""

import shlex
import threading
import webbrowser
from typing import Annotated

import typer

from gpubed import services, tunnel, unfinished
from gpubed.allocation import load as load_allocation
from gpubed.cli.options import Cluster, Json, find
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
    as_json: Json = False,
) -> int:
    """Open JupyterLab, or the status page, in the browser; through a tunnel where one is needed."""
    ui, paths = UI(as_json), find(cluster)
    granted, wanted = load_allocation(paths.allocation), from_file(paths.spec)
    if not status:
        unfinished.require_none(paths)
    name = services.STATUS if status else "jupyterlab"
    url = services.token_url(paths, wanted, granted, name)
    lab = wanted.spec.services.jupyterlab
    behind = lab.port if lab and granted.nodes and granted.head.via else None
    if print_url or as_json:
        words = tunnel.command(paths, granted, behind, behind) if behind else None
        ui.document("open", {"url": url, "tunnel": words})
        if not as_json:
            ui.raw(url + "\n")
        if words:
            ui.note(f"first: {shlex.join(words)}")
        return 0
    if granted.nodes:
        ui.note(f"the certificate is the cluster's own: {paths.state / 'jupyterlab.crt'}")
    if behind is None:
        return _browse(ui, url, cluster, status)
    with tunnel.to_head(paths, granted, behind, local=behind) as (_, local):
        code = _browse(ui, url.replace(f":{behind}/", f":{local}/", 1), cluster, status)
        if code == 0:
            ui.note("the tunnel to the head is open until Ctrl-C")
            threading.Event().wait()
    return code


def _browse(ui: UI, url: str, cluster: str, status: bool) -> int:
    if webbrowser.open(url):
        return 0
    again = f"gpubed open {cluster}{' --status' if status else ''} --print"
    ui.error("there is no browser on this machine", again)
    return 3
