"""A GENI site for tests: aggregate, slice authority and member authority.

Speaks AM API v3 and the Common Federation API v2 over TLS with client certificates, as Emulab's
servers do. Its slivers are states only (`Ghosts`), or nodes that answer (`doors`, `machines`).

    with AmServer(folder) as server:
        alice = server.user("alice")
        ...                        # server.am_url, server.bundle, alice.pem
        server.faults.on("Allocate", faults.lost())
        assert server.slivers() == []
"""

from . import faults
from .names import Site
from .nodes import Ghosts
from .server import PROJECT, AmServer
from .slices import Limits

__all__ = ["PROJECT", "AmServer", "Ghosts", "Limits", "Site", "faults"]
