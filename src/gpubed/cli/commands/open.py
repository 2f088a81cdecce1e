"""gpubed open."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from typer import Option

from gpubed.access import browser, certificate, services, tensorboard, tunnel
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.configuration import unfinished
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import interruption
from gpubed.nodes.allocation import Cluster
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed open lab --print"
PLACE = ("Work", 50)
_PAGE = "open.html"


def command(
    name: ClusterName,
    status: bool = Option(False, "--status", help="The status page instead of JupyterLab."),
    hub: bool = Option(False, "--hub", help="JupyterHub, where researchers log in."),
    tracking: bool = Option(False, "--tracking", help="MLflow: tracked runs and models."),
    curves: bool = Option(False, "--tensorboard", help="TensorBoard over all runs, until Ctrl-C."),
    print_url: bool = Option(False, "--print", help="Print the URL with its token, open nothing."),
    by_tunnel: bool = Option(
        False, "--tunnel", help="Through SSH, until Ctrl-C; needs no trusted certificate."
    ),
    how_to_trust: bool = Option(
        False, "--trust", help="Print the commands that make systems trust the certificate."
    ),
    as_json: Json = False,
) -> int:
    """Open JupyterLab or another service in the browser.

    Through a tunnel where one is needed.
    """
    ui, paths = UI(as_json), find(name)
    cluster = load_cluster(paths)
    chosen = {services.STATUS: status, services.HUB: hub, services.TRACKING: tracking}
    service = next((name for name, wanted in chosen.items() if wanted), "jupyterlab")
    again = f"gpubed open {paths.name}{f' --{service}' * any(chosen.values())}"
    entrance, allocation = services.entrance(cluster, service), cluster.allocation
    if how_to_trust:
        return _show_how_to_trust(ui, cluster, entrance.certificate)
    unfinished.require_configured(cluster)
    if curves:
        return _open_tensorboard(ui, cluster, show=print_url or as_json)
    if not (status or tracking):
        unfinished.require_none(paths)
    url, port = services.token_url(cluster, service), entrance.port
    if entrance.login:
        ui.note(entrance.login, whole=True)
    if by_tunnel:
        return _open_by_tunnel(ui, cluster, entrance, url, again, show=print_url or as_json)
    hidden_port = port if allocation.nodes and allocation.head.via else 0
    if print_url or as_json:
        return _print(ui, cluster, url, hidden_port)
    if allocation.nodes:
        or_tunnel = "" if hub else ", '--tunnel' needs none"
        ui.note(
            f"the certificate is the cluster's own: '{again} --trust' makes it known{or_tunnel}"
        )
    if not hidden_port:
        _show(paths, url, again)
        return 0
    interruption.end_quietly()
    with _page_removed(paths), tunnel.through_ssh(cluster, hidden_port, local=hidden_port) as way:
        _show(paths, url.replace(f":{hidden_port}/", f":{way.port}/", 1), again)
        ui.note("the tunnel to the head is open until Ctrl-C")
        way.wait(again)
    return 0


def _print(ui: UI, cluster: Cluster, url: str, hidden_port: int) -> int:
    words = tunnel.command(cluster, hidden_port, hidden_port) if hidden_port else None
    ui.document("open", {"url": url, "tunnel": words})
    if not ui.as_json:
        ui.raw(url + "\n")
    if words:
        ui.note(f"first: {shlex.join(words)}", whole=True)
    return 0


def _open_by_tunnel(
    ui: UI, cluster: Cluster, entrance: services.Entrance, url: str, again: str, *, show: bool
) -> int:
    if again.endswith(f"--{services.HUB}"):
        raise UsageError("JupyterHub answers over TLS alone", f"{again} --trust")
    cluster.allocation.require_nodes()
    interruption.end_quietly()
    paths, again = cluster.paths, f"{again} --tunnel"
    with _page_removed(paths), tunnel.through_ssh(cluster, entrance.port) as way:
        _relay(ui, paths, entrance.certificate, url, way, again, show=show)
    return 0


def _open_tensorboard(ui: UI, cluster: Cluster, *, show: bool) -> int:
    cluster.allocation.require_nodes()
    interruption.end_quietly()
    again = f"gpubed open {cluster.name} --tensorboard"
    with _page_removed(cluster.paths), tensorboard.opened(cluster, again) as (url, wait):
        ui.document("open", {"url": url, "tunnel": None})
        if not show:
            _show(cluster.paths, url, again)
        elif not ui.as_json:
            ui.raw(url + "\n")
        ui.note("TensorBoard runs until Ctrl-C")
        wait()
    return 0


def _show(paths: ClusterPaths, url: str, again: str) -> None:
    if not browser.visit(url, paths.secrets / _PAGE):
        raise PrerequisiteMissing("there is no browser on this machine", f"{again} --print")


@contextmanager
def _page_removed(paths: ClusterPaths) -> Iterator[None]:
    """Remove the page with the token, which `browser.visit` writes, after the body."""
    try:
        yield
    finally:
        (paths.secrets / _PAGE).unlink(missing_ok=True)


def _show_how_to_trust(ui: UI, cluster: Cluster, authority: Path) -> int:
    trusted = certificate.authority(authority, cluster.allocation.head)
    steps = certificate.steps(cluster.name, trusted)
    document = {"certificate": trusted.certificate, "sha256": trusted.sha256, "systems": steps}
    ui.document("open", document)
    ui.say(f"{trusted.certificate} vouches for this page of {cluster.name} and for nothing else:")
    ui.say(f"it is limited to {', '.join(trusted.names)}.")
    ui.say(f"SHA-256 {trusted.sha256}")
    ui.say("Copy it to the machine that has the browser, then there:")
    for system, commands in steps.items():
        ui.say(f"\n{system}")
        for command in commands:
            ui.say(f"  {command}", whole=True)
    return 0


def _relay(
    ui: UI,
    paths: ClusterPaths,
    authority: Path,
    url: str,
    way: tunnel.Tunnel,
    again: str,
    *,
    show: bool,
) -> None:
    def ready(port: int) -> None:
        local_url = re.sub(r"^https://[^/]+", f"http://{browser.ADDRESS}:{port}", url)
        ui.document("open", {"url": local_url, "tunnel": None})
        if not show:
            _show(paths, local_url, again)
        elif not ui.as_json:
            ui.raw(local_url + "\n")
        ui.note("the tunnel to the head is open until Ctrl-C: close its pages before")

    def refused(user: str) -> None:
        if user not in reported:
            reported.add(user)
            ui.note(f"refused {user}, another user of this machine, who tried to connect")

    reported: set[str] = set()
    service = (tunnel.LOCAL, way.port)
    require_way = partial(way.require_open, again)
    browser.relay(authority, service, ready, require_way, refused)
