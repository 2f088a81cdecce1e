"""A machine of its own on this one: a network namespace, with one end of a link in it."""

import subprocess
import uuid
from contextlib import contextmanager


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextmanager
def linked():
    """Make a namespace with eth0 in it; yields its name, and the name of the other end."""
    name, veth = f"gpubed-{uuid.uuid4().hex[:6]}", f"gb{uuid.uuid4().hex[:6]}"
    ip("netns", "add", name)
    try:
        ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name)
        yield name, veth
    finally:
        subprocess.run(["ip", "link", "del", veth], check=False)
        ip("netns", "del", name)
