"""A machine of its own that reaches the nodes through this host, and what it finds open."""

import json
import subprocess
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path

from support.namespace import ip, linked

_KNOCKING = Path(__file__).with_name("knocking.py")


@contextmanager
def machine():
    """A machine of its own beside this host.

    Yields its namespace and address, and this host's link to it and address there.
    """
    with linked() as (name, veth):
        here, there = _free_link()
        ip("addr", "add", f"{here}/30", "dev", veth)
        ip("link", "set", veth, "up")
        ip("-n", name, "addr", "add", f"{there}/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        yield name, str(there), veth, str(here)


@contextmanager
def outsider(bridge):
    """A machine that reaches the nodes through this host; yields its namespace."""
    with machine() as (name, _, veth, here):
        ip("-n", name, "route", "add", "default", "via", here)
        # Docker isolates its bridges from other interfaces; open a path for this one.
        rule = ["-i", veth, "-o", bridge, "-j", "ACCEPT"]
        subprocess.run(["iptables", "-I", "DOCKER-USER", *rule], check=True)
        subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        try:
            yield name
        finally:
            subprocess.run(["iptables", "-D", "DOCKER-USER", *rule], check=True)


def _free_link():
    shown = subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True, text=True, check=True)
    taken = {
        each["local"] for link in json.loads(shown.stdout) for each in link.get("addr_info", [])
    }
    links = (list(net.hosts()) for net in ip_network("203.0.113.0/24").subnets(new_prefix=30))
    return next(pair for pair in links if str(pair[0]) not in taken)


def scan(namespace, address, ports):
    """Return those of an address's TCP ports that answer a namespace; None is this machine's."""
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    command = [*inside, "python3", str(_KNOCKING), address]
    listed = " ".join(map(str, ports))
    done = subprocess.run(command, input=listed, capture_output=True, text=True, check=True)
    return {int(port) for port in done.stdout.split()}
