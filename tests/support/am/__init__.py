"""A GENI site for tests: aggregate, slice authority and member authority.

Speaks AM API v3, the Common Federation API v2 and ProtoGENI's SA over TLS with client
certificates, as Emulab's servers do, and checks the credentials that it signed itself.
Its slivers are states only (`Ghosts`), or real nodes of this machine (`Machines`).

    with AmServer(folder) as server:
        alice = server.user("alice")
        ...                        # server.am_url, server.bundle, alice.pem
        server.faults.on("Allocate", faults.lost())
        assert server.slivers() == []

By hand: `python -m tests.support.am --port 12369 --dir /tmp/am`.
"""

from . import faults
from .inventory import HardwareType
from .nodes import Ghosts
from .server import PROJECT, AmServer, Login, Record
from .site import Site
from .slices import Limits

__all__ = [
    "PROJECT",
    "AmServer",
    "Ghosts",
    "HardwareType",
    "Limits",
    "Login",
    "Record",
    "Site",
    "faults",
]
