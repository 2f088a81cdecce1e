"""Runs the site by hand: `python -m tests.support.am --port 12369 --dir /tmp/am`."""

import argparse
import json
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from . import AmServer, Ghosts, Site

_SITES = {"emulab": Site(), "gcf": Site.gcf()}


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.support.am", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=12369)
    parser.add_argument("--dir", type=Path, required=True, help="certificates and keys go here")
    parser.add_argument("--user", default="alice")
    parser.add_argument("--passphrase", default="open sesame")
    nodes = parser.add_mutually_exclusive_group()
    nodes.add_argument("--containers", action="store_true", help="slivers are real nodes")
    nodes.add_argument("--doors", action="store_true", help="slivers answer SSH, and do nothing")
    parser.add_argument("--share", default=Site.share, help="where nodes have the project's share")
    parser.add_argument("--face", choices=_SITES, default="emulab", help="whose answers it gives")
    parser.add_argument("--boot", type=float, default=5, help="seconds that a sliver takes")
    return parser.parse_args()


def _nodes(wanted, site):
    # The libraries of Docker and SSH are not needed otherwise.
    if wanted.containers:
        from .machines import Machines

        return Machines(site)
    if wanted.doors:
        from .doors import Doors

        return Doors(wanted.boot)
    return Ghosts(site.authority, wanted.boot)


def main():
    """Serves until it is interrupted."""
    wanted = _arguments()
    site = replace(_SITES[wanted.face], share=wanted.share)
    nodes = _nodes(wanted, site)
    done = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: done.set())
    with AmServer(wanted.dir, nodes=nodes, site=site, host=wanted.host, port=wanted.port) as server:
        server.user(wanted.user, passphrase=wanted.passphrase or None)
        sys.stdout.write(json.dumps(server.write_facts(), indent=2) + "\n")
        sys.stdout.flush()
        done.wait()


main()
