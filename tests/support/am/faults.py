"""Faults that a test scripts: of one call, or of one node.

faults.on("Allocate", busy())                    the next Allocate
faults.on("Status", http(503), nth=3, times=2)   the third and fourth from now
faults.on("geni-sa/create", lost())              one interface's method
faults.node("worker1", fails="no boot loader")   at its next start
"""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from . import answers, clock

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
    """What goes wrong with a call; what is None or False is as usual.

    Attributes:
        refusal: The answer instead of the call's.
        status: HTTP status instead of an answer.
        reset: The connection is reset instead of an answer.
        after: `status` and `reset` come once the call has taken effect.
        late: Seconds between the effect and the answer.
        arguments: Changes the call's arguments.
        value: Changes the answer's value.
        body: Changes the answer's bytes.
        padding: Bytes that an advertisement is blown up by.
    """

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
    """Returns: an HTTP error, before or after the call took effect."""
    return Fault(status=status, after=after)


def reset():
    """Returns: the connection is reset; the call has no effect."""
    return Fault(reset=True)


def lost():
    """Returns: the call takes effect, and the connection is reset before its answer."""
    return Fault(reset=True, after=True)


def slow(seconds):
    """Returns: the call takes effect, its answer comes late."""
    return Fault(late=seconds)


def busy(text="resource is busy; try again later"):
    """Returns: code 14."""
    return Fault(refusal=answers.busy(text))


def refused(text, code=answers.REFUSED):
    """Returns: a refusal in the testbed's words."""
    return Fault(refusal=answers.Refusal(code, text))


def expired():
    """Returns: the credential is said to have expired."""
    end = clock.stamp(clock.Clock().now())
    return Fault(refusal=answers.malformed(f"invalid credential (expired at {end})"))


def shortened(seconds):
    """Returns: a renewal (of a sliver, or of a slice at the SA) ends so much earlier."""

    def earlier(text):
        return clock.stamp(clock.parse(text) - timedelta(seconds=seconds))

    def change(arguments):
        changed = [*arguments]
        for number, argument in enumerate(arguments):
            if isinstance(argument, dict) and "SLICE_EXPIRATION" in argument.get("fields", {}):
                end = earlier(argument["fields"]["SLICE_EXPIRATION"])
                changed[number] = {**argument, "fields": {"SLICE_EXPIRATION": end}}
            elif isinstance(argument, str) and re.match(r"\d{4}-\d\d-\d\dT", argument):
                changed[number] = earlier(argument)
        return changed

    return Fault(arguments=change)


def entities(where="answer"):
    """Returns: a document type with entities, nested and external ones.

    Args:
        where: `answer` (the XML-RPC document) or `rspec` (the document in it).
    """
    if where == "answer":
        return Fault(body=lambda body: _after_declaration(body.decode(), "&i;&file;").encode())
    return Fault(value=lambda value: _in_rspec(value, lambda text: _laughing(text)))


def huge(size=50 << 20):
    """Returns: an advertisement of that many bytes."""
    return Fault(padding=size)


def not_utf8():
    """Returns: an answer with bytes that are no UTF-8."""
    return Fault(body=lambda body: body.replace(b"</value>", b"\xff\xfe\xc3\x28</value>", 1))


def truncated():
    """Returns: half of the answer, with a length that fits."""
    return Fault(body=lambda body: body[: len(body) // 2])


def not_xml():
    """Returns: a page for people, as a proxy or a login page gives it."""
    return Fault(body=lambda _: b"<html><body><h1>Service under maintenance</h1></body></html>")


def _laughing(text):
    return _after_declaration(text, "").replace("</rspec>", "<note>&i;&file;</note></rspec>", 1)


def _after_declaration(text, content):
    declaration, rest = re.fullmatch(r"(<\?xml.*?\?>)?(.*)", text, re.DOTALL).groups()
    rest = rest.replace("</value>", f"{content}</value>", 1) if content else rest
    return f"{declaration or ''}{_LAUGHS}{rest}"


def _in_rspec(value, change):
    if isinstance(value, dict) and "geni_rspec" in value:
        return {**value, "geni_rspec": change(value["geni_rspec"])}
    return change(value) if isinstance(value, str) else value


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
    times: int | None = 1


@dataclass
class Faults:
    """The script; `hidden` are the client_ids of nodes that manifests lack."""

    hidden: set[str] = field(default_factory=set)
    _scripts: list[_Script] = field(default_factory=list)
    _nodes: dict[str, NodeFault] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(self, method, fault, nth=1, times=1):
        """Lets calls of a method go wrong.

        Args:
            method: `Allocate`, or with its interface `geni-sa/create`; `*` for all.
            fault: What goes wrong.
            nth: The first call it concerns, counted from now.
            times: How many calls; None for all that follow.
        """
        with self._lock:
            self._scripts.append(_Script(method, fault, nth - 1, times))

    def node(self, client_id, *, fails=None, slow=0, times=1):
        """Lets the next starts of a node fail, or take longer."""
        with self._lock:
            self._nodes[client_id] = NodeFault(fails, slow, times)

    def clear(self):
        """Forgets all of the script."""
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
            hit = None
            for script in self._scripts:
                if script.method not in (method, f"{interface}/{method}", "*"):
                    continue
                if script.skip:
                    script.skip -= 1
                elif hit is None and script.times != 0:
                    hit = script
            if hit is None:
                return NONE
            if hit.times is not None:
                hit.times -= 1
            return hit.fault

    def take_node(self, client_id):
        """Returns the fault of a node that is about to start."""
        with self._lock:
            found = self._nodes.get(client_id)
            if found is None or found.times == 0:
                return NodeFault()
            if found.times is not None:
                found.times -= 1
            return replace(found)


def wait(seconds):
    """Sleeps; apart so that its reason is plain: an answer is awaited."""
    if seconds:
        time.sleep(seconds)
