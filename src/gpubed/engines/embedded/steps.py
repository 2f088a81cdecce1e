"""What a step does: the provider call between two entries in the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpubed.engines.embedded.checkpoint import Operation, timestamp
from gpubed.engines.embedded.failures import ProviderFailed, ProviderLost
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import Properties, Secret, changed_keys
from gpubed.testbeds.driver import UNKNOWN_TEXT


class Steps:
    """The operations of Pulumi that change one resource.

    Args:
        run: The operation they belong to.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def same(self, old: State, new: State) -> None:
        """Keeps a resource; its outputs stay, its options may change."""
        with self._run.step("same", new):
            new.id, new.outputs = old.id, old.outputs
            _keep_history(old, new)
            self._run.journal.record(new, old, changed=_differs(old, new))

    def create(
        self,
        new: State,
        op: str = "create",
        *,
        old: State | None = None,
        keep_old: bool = False,
        why: tuple[str, ...] = (),
    ) -> None:
        """Creates a resource.

        Args:
            new: What to create.
            op: `create` or `create-replacement`.
            old: The state it replaces.
            keep_old: The old one still exists and is deleted at the end of the run.
            why: The inputs that forced the replacement.
        """
        with self._run.step(op, new, why):
            operation = self._create(new)
            new.created = new.modified = timestamp()
            # A crash must find the new entry and the flag on the old one, or neither.
            with self._run.journal.atomic():
                self._run.journal.settle(operation)
                if old and keep_old:
                    old.delete = True
                    self._run.journal.touch(old)
                self._run.journal.record(new, None if keep_old else old)

    def _create(self, new: State) -> Operation | None:
        if self._run.preview:
            new.outputs = dict(new.inputs)
        if self._run.preview or not new.custom:
            return None
        with self._pending(new, "creating") as operation:
            new.id, outputs = self._run.provider.create(new)
        new.outputs = guarded(new, outputs)
        return operation

    def update(self, old: State, new: State, ignored: list[str], why: tuple[str, ...]) -> None:
        """Changes a resource in place."""
        with self._run.step("update", new, why):
            new.id = old.id
            _keep_history(old, new)
            operation = self._update(old, new, ignored)
            with self._run.journal.atomic():
                self._run.journal.settle(operation)
                self._run.journal.record(new, old)

    def _update(self, old: State, new: State, ignored: list[str]) -> Operation | None:
        if self._run.preview:
            new.outputs = dict(new.inputs)
        if self._run.preview or not new.custom:
            return None
        with self._pending(new, "updating") as operation:
            outputs = self._run.provider.update(old, new, ignored)
        new.outputs = guarded(new, outputs)
        new.modified = timestamp()
        return operation

    def read(self, new: State, old: State | None, *, replacing: bool) -> None:
        """Reads what others manage, in previews too.

        Args:
            new: What to read.
            old: The state it takes the place of.
            replacing: That state is a resource of ours, deleted at the end of the run.
        """
        with self._run.step("read-replacement" if replacing else "read", new) as step:
            operation = self._read(new)
            if old:
                _keep_history(old, new)
            # A read that changed nothing is left out of the counts of the result.
            step.why = changed_keys(old.outputs, new.outputs) if old else ()
            if step.why:
                new.modified = timestamp()
            else:
                step.counts_as = ""
            with self._run.journal.atomic():
                self._run.journal.settle(operation)
                if old and replacing:
                    old.delete = True
                    self._run.journal.touch(old)
                self._run.journal.record(new, None if replacing else old)

    def _read(self, new: State) -> Operation | None:
        if new.id == UNKNOWN_TEXT:
            return None
        with self._pending(new, "reading") as operation:
            found, outputs, _ = self._run.provider.read(new, new.inputs)
        # Python's providers cannot say "there is none": nothing read is all they can do.
        new.id, new.outputs = found or new.id, guarded(new, outputs)
        return operation

    def replaced(self, new: State, why: tuple[str, ...]) -> None:
        """Reports a replacement as a whole; its halves have steps of their own."""
        with self._run.step("replace", new, why):
            pass

    def delete(self, old: State, op: str = "delete", *, recreate: bool = False) -> None:
        """Deletes a resource.

        Args:
            old: What to delete.
            op: `delete` or `delete-replaced`.
            recreate: Its entry stays, marked, until the replacement exists.
        """
        with self._run.step(op, old):
            operation = self._delete(old)
            with self._run.journal.atomic():
                self._run.journal.settle(operation)
                if recreate:
                    old.pending_replacement = True
                    self._run.journal.touch(old)
                else:
                    self._run.journal.record(None, old)

    def _delete(self, old: State) -> Operation | None:
        if self._run.preview or not _is_ours(old):
            return None
        with self._pending(old, "deleting") as operation:
            self._run.provider.delete(old)
        return operation

    @contextlib.contextmanager
    def _pending(self, state: State, type_: str) -> Iterator[Operation]:
        """Begins a pending operation, which a provider's error ends.

        Success leaves it, to be settled together with the result; so does a lost
        provider, whose work may exist without a state that names it.
        """
        operation = self._run.journal.begin(state, type_)
        try:
            yield operation
        except ProviderLost:
            raise
        except ProviderFailed:
            self._run.journal.settle(operation)
            raise


def _is_ours(old: State) -> bool:
    """Returns whether a provider has something to delete, and may."""
    is_provider = old.type.startswith("pulumi:providers:")
    kept = old.retain_on_delete or old.external or old.pending_replacement
    return old.custom and not is_provider and not kept


def _keep_history(old: State, new: State) -> None:
    new.created, new.modified = old.created, old.modified


def guarded(state: State, outputs: Properties) -> Properties:
    """Returns outputs, secret where asked for or where the like-named input is."""
    inputs = {key for key, value in state.inputs.items() if isinstance(value, Secret)}
    secret = inputs | set(state.additional_secret_outputs)
    return {
        key: Secret(value) if key in secret and not isinstance(value, Secret) else value
        for key, value in outputs.items()
    }


_COMPARED = (
    "provider",
    "parent",
    "protect",
    "taint",
    "retain_on_delete",
    "inputs",
    "outputs",
    "property_dependencies",
    "additional_secret_outputs",
    "ignore_changes",
    "pending_replacement",
)


def _differs(old: State, new: State) -> bool:
    """Returns whether an unchanged resource still has something to save, position aside."""
    if set(old.dependencies) != set(new.dependencies):
        return True
    return any(getattr(old, field) != getattr(new, field) for field in _COMPARED)
