"""A machine of somebody else's on a network of the nodes, with whatever address it claims."""

import subprocess
from contextlib import contextmanager

from support.namespace import ip, linked

_SEND = (
    "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); "
    "s.sendto(sys.argv[3].encode(), (sys.argv[1], int(sys.argv[2])))"
)


def bridge_of(address):
    """Return the bridge of this machine that leads to a node's address."""
    route = subprocess.run(
        ["ip", "route", "get", address], capture_output=True, text=True, check=True
    )
    return route.stdout.split(" dev ")[1].split()[0]


class Neighbour:
    """A network namespace of its own, plugged into a bridge."""

    def __init__(self, namespace):
        self.namespace = namespace

    def say(self, address, port, words):
        """Send a datagram: unlike a connection it needs no answer to have its effect."""
        command = ["python3", "-c", _SEND, address, str(port), words]
        subprocess.run(["ip", "netns", "exec", self.namespace, *command], check=True)


@contextmanager
def on(bridge, *addresses, way=()):
    """Plug a neighbour into a bridge, with addresses (`10.0.0.2/24`) that it claims as its own."""
    with linked() as (name, veth):
        ip("link", "set", veth, "master", bridge, "up")
        for address in addresses:
            ip("-n", name, "addr", "add", address, "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        if way:
            ip("-n", name, "route", "add", *way)
        yield Neighbour(name)
