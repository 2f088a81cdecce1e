"""Writes those of the TCP ports on stdin that answer: `python3 knocking.py ADDRESS`.

A program of its own, since it runs in another network namespace. Each port gets a whole
connection. A firewall that drops says nothing, so nearly all ports are waited for to the end:
thousands at once, at a pace that no queue on the way drops anything of. The kernel repeats a
lost packet one and three seconds later. Firewalls on the way remember each packet that nobody
answered for two minutes, and usually 262,144 of them: so one scan at a time.
"""

import errno
import resource
import select
import socket
import sys
import time

PER_SECOND = 2000
PATIENCE_S = 3.5
SPARE_FILES = 64


def answering(address, ports):
    most = files() - SPARE_FILES
    poller, waiting = select.epoll(), {}
    ports, asked, began = iter(ports), 0, time.monotonic()
    port = next(ports, None)
    while port is not None or waiting:
        now = time.monotonic()
        while port is not None and len(waiting) < most and asked < (now - began) * PER_SECOND:
            door = knock(address, port)
            waiting[door.fileno()] = (port, door, now + PATIENCE_S)
            poller.register(door, select.EPOLLOUT)
            port, asked = next(ports, None), asked + 1
        for descriptor, _ in poller.poll(timeout=0.01):
            answered, door, _ = waiting.pop(descriptor)
            if is_connected(door):
                yield answered
            door.close()
        # The first is the oldest.
        while waiting and next(iter(waiting.values()))[2] < now:
            waiting.pop(next(iter(waiting)))[1].close()


def files():
    """Return how many files this process may have open, after asking for all it may get."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def knock(address, port):
    """Begin a connection; whether it comes about, its socket says later."""
    door = socket.socket()
    door.setblocking(False)
    failed = door.connect_ex((address, port))
    if failed not in (0, errno.EINPROGRESS, errno.ECONNREFUSED):
        raise OSError(failed, f"cannot ask {address}:{port}")
    return door


def is_connected(door):
    """Say whether a connection that began came about."""
    try:
        door.getpeername()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    found = answering(sys.argv[1], map(int, sys.stdin.read().split()))
    sys.stdout.write(" ".join(map(str, found)))
