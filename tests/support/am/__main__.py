"""Runs the site by hand: `python -m tests.support.am --port 12369 --dir /tmp/am`."""

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from . import AmServer, Ghosts, Site


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.support.am", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=12369)
    parser.add_argument("--dir", type=Path, required=True, help="certificates and keys go here")
    parser.add_argument("--user", default="alice")
    parser.add_argument("--passphrase", default="open sesame")
    parser.add_argument("--containers", action="store_true", help="slivers are real nodes")
    parser.add_argument("--share", default=Site.share, help="where nodes have the project's share")
    parser.add_argument("--standard", action="store_true", help="answers not as Emulab's")
    parser.add_argument("--boot", type=float, default=5, help="seconds that a sliver takes")
    return parser.parse_args()


def main():
    """Serves until it is interrupted."""
    wanted = _arguments()
    face = "standard" if wanted.standard else "emulab"
    site = Site(share=wanted.share, face=face)
    nodes = Ghosts(site.authority, wanted.boot)
    if wanted.containers:
        # Docker's library is not needed otherwise.
        from .machines import Machines

        nodes = Machines(site)
    done = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: done.set())
    with AmServer(wanted.dir, nodes=nodes, site=site, host=wanted.host, port=wanted.port) as server:
        server.user(wanted.user, passphrase=wanted.passphrase or None)
        sys.stdout.write(json.dumps(server.write_facts(), indent=2) + "\n")
        sys.stdout.flush()
        done.wait()


main()
