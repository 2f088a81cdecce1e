"""Keeps the changing state on disk: every step is written, many steps share one write."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.checkpoint import Checkpoint, Operation, head, manifest
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.state import State, encode


class Journal:
    """Collects this run's states and writes them with the untouched old ones.

    A pending operation is on disk before a provider is called, so that a killed engine leaves a
    trace of the call. Results are written by the next group commit. Without a file (in a preview),
    nothing is written.
    """

    def __init__(
        self, checkpoint: Checkpoint, cipher: PassphraseCipher, file: StackFile | None
    ) -> None:
        self._cipher = cipher
        self._file = file
        self._base = {id(state): state for state in checkpoint.resources}
        self._done: dict[int, State] = {}
        # Only an interrupted create may have left something that no state names.
        self._pending = [op for op in checkpoint.pending if op.type == "creating"]
        self._encoded: dict[int, str] = {}
        self._changed = threading.Condition(threading.RLock())
        self._version = self._written = 0
        self._error: Exception | None = None
        self._closed = False
        self._writer = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        if file:
            self._writer.start()

    def resources(self) -> list[State]:
        """Return this run's states in order of completion, then the untouched old ones."""
        with self._changed:
            return [*self._done.values(), *self._base.values()]

    def begin(self, state: State, type_: str) -> Operation:
        """Record a provider call that is about to start, and wait until the record is on disk."""
        operation = Operation(state, type_)
        with self._changed:
            self._pending.append(operation)
            self._bump()
            version = self._version
            while self._file and self._written < version and not self._error:
                self._changed.wait()
            if self._error:
                raise self._error
        return operation

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Write the changes of the body together."""
        with self._changed:
            yield

    def settle(self, operation: Operation | None) -> None:
        """Remove a pending operation; record its result in the same `atomic` body."""
        if operation:
            with self._changed:
                self._pending.remove(operation)
                self._bump()

    def record(
        self, new: State | None = None, replaces: State | None = None, *, changed: bool = True
    ) -> None:
        """Add a finished state and drop the one it replaces."""
        with self._changed:
            if replaces:
                self._base.pop(id(replaces), None)
                self._done.pop(id(replaces), None)
            if new:
                self._done[id(new)] = new
            if changed:
                self._bump()

    def touch(self, *states: State) -> None:
        """Mark recorded states as changed in place."""
        with self._changed:
            for state in states:
                self._encoded.pop(id(state), None)
            self._bump()

    def forget_interrupted(self) -> None:
        """Drop the interrupted creations of earlier runs."""
        with self._changed:
            if self._pending:
                self._pending.clear()
                self._bump()

    def close(self) -> None:
        """Write what is outstanding and end the writer; raise if the state could not be written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._file:
            self._writer.join()
        if self._error:
            raise self._error

    def _bump(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _write_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._version > self._written)
                if self._version == self._written:
                    return
                version, text = self._version, self._text()
            try:
                assert self._file is not None  # noqa: S101
                if not self._written:
                    self._file.keep()
                self._file.write(text)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._written = version
                self._changed.notify_all()

    def _text(self) -> str:
        assert self._file is not None  # noqa: S101
        latest = {
            "manifest": manifest(),
            "secrets_providers": {"type": "passphrase", "state": {"salt": self._cipher.salt}},
        }
        checkpoint = {"stack": f"organization/{self._file.project}/{self._file.stack}"}
        resources = [self._encode(state) for state in self.resources()]
        pending = [
            f'{{"resource":{self._fresh(op.state)},"type":{json.dumps(op.type)}}}'
            for op in self._pending
        ]
        # One resource per line keeps the file readable and diffs useful.
        lists = "".join(
            f',"{name}":[\n{lines}\n]'
            for name, items in (("resources", resources), ("pending_operations", pending))
            if (lines := ",\n".join(items))
        )
        return (
            f"{json.dumps(head(self.resources()))[:-1]},"
            f'"checkpoint":{json.dumps(checkpoint)[:-1]},"latest":{json.dumps(latest)[:-1]}{lists},'
            '"metadata":{}}}}\n'
        )

    def _encode(self, state: State) -> str:
        text = self._encoded.get(id(state))
        if text is None:
            text = self._encoded[id(state)] = self._fresh(state)
        return text

    def _fresh(self, state: State) -> str:
        return json.dumps(encode(state, self._cipher))
