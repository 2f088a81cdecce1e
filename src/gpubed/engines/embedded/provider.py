"""Starts the SDK's dynamic provider server in a child process, and calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc  # type: ignore[import-untyped]

from gpubed.engines.embedded.child import Child
from gpubed.engines.embedded.events import ProviderFailed, ProviderLost
from gpubed.engines.embedded.protocol import (
    CHANNEL_OPTIONS,
    from_struct,
    provider_pb2_grpc,
    to_struct,
)
from gpubed.engines.embedded.protocol import provider_pb2 as pb
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import Properties, restore_secrets


class Verdict(NamedTuple):
    """A provider's comparison of a resource with its wanted inputs."""

    changed: bool | None  # None if the provider leaves the comparison to the engine
    why: tuple[str, ...]  # the inputs that force a replacement, else those that changed
    replace: bool
    delete_first: bool


class Provider:
    """Calls to dynamic providers; one process serves the whole run."""

    def __init__(
        self,
        cwd: Path,
        socket: Path,
        environment: Mapping[str, str],
        parallel: int,
        on_line: Callable[[str], None],
    ) -> None:
        self._cwd, self._socket, self._on_line = cwd, socket, on_line
        self._environment, self._parallel = environment, parallel
        self._child: Child | None = None
        self._stub: Any = None
        self._channel: grpc.Channel | None = None
        self._over = False
        self._launching, self._connecting = threading.Lock(), threading.Lock()

    def start(self) -> None:
        """Start the process without waiting for it; else the first call starts it.

        Must be called by the run's own thread, which outlives the process. (If a call starts it, in
        the preview of a new stack, the calling thread lasts until the program has ended.)
        """
        with self._launching:
            if not self._child and not self._over:
                self._child = Child(
                    ["providers", str(self._socket), str(self._parallel)],
                    self._cwd,
                    self._environment,
                    self._on_line,
                )

    def stop(self) -> None:
        """End the process and its descendants."""
        with self._launching:
            self._over = True
        if self._child:
            self._child.stop()
        if self._channel:
            self._channel.close()

    def check(self, urn: str, olds: Properties, news: Properties) -> Properties:
        """Return the inputs as the provider normalizes them; raise `ProviderFailed` if invalid."""
        reply = self._call("Check", pb.CheckRequest(urn=urn, olds=_plain(olds), news=_plain(news)))
        if reply.failures:
            raise ProviderFailed("; ".join(f"{f.property}: {f.reason}" for f in reply.failures))
        return restore_secrets(from_struct(reply.inputs), news)

    def diff(self, old: State, news: Properties) -> Verdict:
        """Compare a resource with the inputs it should have."""
        reply = self._call("Diff", pb.DiffRequest(**_of(old, "olds"), news=_plain(news)))
        changed = {pb.DiffResponse.DIFF_NONE: False, pb.DiffResponse.DIFF_SOME: True}
        why, found = tuple(reply.replaces), changed.get(reply.changes)
        return Verdict(found, why, bool(why), reply.deleteBeforeReplace)

    def create(self, new: State) -> tuple[str, Properties]:
        """Create the resource and return its id and outputs."""
        request = pb.CreateRequest(urn=new.urn, properties=_plain(new.inputs))
        reply = self._call("Create", request)
        if not reply.id:
            raise ProviderFailed("the provider's create returned no id")
        return reply.id, restore_secrets(from_struct(reply.properties), new.inputs)

    def update(self, old: State, new: State) -> Properties:
        """Change the resource in place and return its outputs."""
        request = pb.UpdateRequest(**_of(old, "olds"), news=_plain(new.inputs))
        reply = self._call("Update", request)
        return restore_secrets(from_struct(reply.properties), new.inputs)

    def delete(self, old: State) -> None:
        """Delete the resource."""
        self._call("Delete", pb.DeleteRequest(**_of(old, "properties")))

    def read(self, state: State) -> tuple[str, Properties, Properties]:
        """Return the resource's present id, which is empty if it has gone, outputs, and inputs."""
        request = pb.ReadRequest(
            id=state.id,
            urn=state.urn,
            properties=_plain(state.outputs),
            inputs=_plain(state.inputs),
        )
        reply = self._call("Read", request)
        outputs = restore_secrets(from_struct(reply.properties), state.outputs)
        if not reply.HasField("inputs"):
            return reply.id, outputs, state.inputs
        return reply.id, outputs, restore_secrets(from_struct(reply.inputs), state.inputs)

    def _call(self, method: str, request: Any) -> Any:
        try:
            with self._connecting:
                if self._stub is None:
                    self._stub = self._connect()
            return getattr(self._stub, method)(request)
        except grpc.RpcError as error:
            # CANCELLED: the channel was closed during a call that had not noticed the server's end.
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise ProviderLost("the provider process ended during the call") from error
            raise ProviderFailed(error.details() or str(error.code())) from error

    def _connect(self) -> Any:
        self.start()
        if self._child is None:
            raise ProviderFailed("the run is over")
        line = self._child.first_line()  # a port number, which has no meaning for a socket
        self._child.pump_output()
        if not self._socket.is_socket():
            raise ProviderFailed(f"the provider process did not start: {line or 'no output'}")
        self._channel = grpc.insecure_channel(f"unix:{self._socket}", options=CHANNEL_OPTIONS)
        stub = provider_pb2_grpc.ResourceProviderStub(self._channel)
        stub.Configure(pb.ConfigureRequest())
        return stub


def _plain(properties: Properties) -> Any:
    return to_struct(properties, plain=True)


def _of(old: State, outputs: str) -> dict[str, Any]:
    """Return the common fields of requests; the name of the outputs' field differs by request."""
    return {
        "id": old.id,
        "urn": old.urn,
        outputs: _plain(old.outputs),
        "old_inputs": _plain(old.inputs),
    }
