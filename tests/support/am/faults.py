"""Faults that a test scripts: of one call, or of one node.

faults.on("Allocate", busy())                    the next Allocate
faults.on("Status", http(503), nth=3, times=2)   the third and fourth from now
faults.on("geni-sa/create", lost())              one interface's method
faults.node("worker1", fails="no boot loader")   at its next start
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from . import answers, names

_LAUGHS = (
    '<!DOCTYPE rspec [<!ENTITY a "aaaaaaaaaa">'
    + "".join(
        f'<!ENTITY {name} "{f"&{below};" * 10}">'
        for below, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + '<!ENTITY file SYSTEM "file:///etc/hostname">]>'
)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a call; what is None or False is as usual."""

    refusal: answers.Refusal | None = None
    status: int | None = None
    reset: bool = False
    after: bool = False
    late: float = 0
    arguments: Callable[[list[Any]], list[Any]] | None = None
    value: Callable[[Any], Any] | None = None
    body: Callable[[bytes], bytes] | None = None
    padding: int = 0


NONE = Fault()


def http(status=503, *, after=False):
    """An HTTP error, before or after the call took effect."""
    return Fault(status=status, after=after)


def reset():
    """The connection is reset; the call has no effect."""
    return Fault(reset=True)


def lost():
    """The call takes effect, and the connection is reset before its answer."""
    return Fault(reset=True, after=True)


def slow(seconds):
    """The call takes effect, its answer comes late."""
    return Fault(late=seconds)


def busy():
    return Fault(refusal=answers.busy())


def refused(text, code=answers.REFUSED):
    """A refusal in the testbed's words."""
    return Fault(refusal=answers.Refusal(code, text))


def shortened(seconds):
    """A renewal of slivers ends so much earlier."""

    def change(arguments):
        return [
            names.stamp(names.time(one) - timedelta(seconds=seconds))
            if isinstance(one, str) and re.match(r"\d{4}-\d\d-\d\dT", one)
            else one
            for one in arguments
        ]

    return Fault(arguments=change)


def entities(where="answer"):
    """A document type with entities, nested and external ones, in the answer or its RSpec."""
    if where == "answer":
        return Fault(body=lambda body: _after_declaration(body.decode(), "&i;&file;").encode())
    return Fault(value=lambda text: _after_declaration(text, ""))


def huge(size=50 << 20):
    """An advertisement of that many bytes."""
    return Fault(padding=size)


def not_utf8():
    return Fault(body=lambda body: body.replace(b"</value>", b"\xff\xfe\xc3\x28</value>", 1))


def truncated():
    """Half of the answer, with a length that fits."""
    return Fault(body=lambda body: body[: len(body) // 2])


def not_xml():
    """A page for people, as a proxy or a login page gives it."""
    return Fault(body=lambda _: b"<html><body><h1>Service under maintenance</h1></body></html>")


def _after_declaration(text, content):
    declaration, rest = re.fullmatch(r"(<\?xml.*?\?>)?(.*)", text, re.DOTALL).groups()
    rest = rest.replace("</value>", f"{content}</value>", 1) if content else rest
    return f"{declaration or ''}{_LAUGHS}{rest}"


@dataclass
class _Script:
    method: str
    fault: Fault
    skip: int
    times: int | None


@dataclass
class NodeFault:
    """What goes wrong with a node: `fails` is the testbed's reason, `slow` in seconds."""

    fails: str | None = None
    slow: float = 0
    times: int = 1


@dataclass
class Faults:
    """The script; `hidden` are the client_ids of nodes that manifests lack."""

    hidden: set[str] = field(default_factory=set)
    _scripts: list[_Script] = field(default_factory=list)
    _nodes: dict[str, NodeFault] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(self, method, fault, nth=1, times=1):
        """Lets `times` calls of a method go wrong (None: all), from the `nth` from now on.

        `method` may have its interface, `geni-sa/create`.
        """
        with self._lock:
            self._scripts.append(_Script(method, fault, nth - 1, times))

    def node(self, client_id, *, fails=None, slow=0, times=1):
        """Lets the next starts of a node fail, or take longer."""
        with self._lock:
            self._nodes[client_id] = NodeFault(fails, slow, times)

    def clear(self):
        with self._lock:
            self._scripts.clear()
            self._nodes.clear()
            self.hidden.clear()

    def pending(self):
        """Returns the methods whose faults have not come about yet."""
        with self._lock:
            return [script.method for script in self._scripts if script.times]

    def take(self, interface, method):
        """Returns the fault of the call that has come in."""
        with self._lock:
            for script in self._scripts:
                if script.method not in (method, f"{interface}/{method}") or script.times == 0:
                    continue
                if script.skip:
                    script.skip -= 1
                    continue
                if script.times is not None:
                    script.times -= 1
                return script.fault
            return NONE

    def take_node(self, client_id):
        """Returns the fault of a node that is about to start."""
        with self._lock:
            found = self._nodes.get(client_id)
            if found is None or found.times == 0:
                return NodeFault()
            found.times -= 1
            return found
