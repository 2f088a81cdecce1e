"""Opens a stack on disk: its project, configuration, key and last state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gpubed.core import reading
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.reading import Unreadable
from gpubed.engines.embedded import checkpoint, project
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.checkpoint import Checkpoint
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.failures import CLI_HINT, Refusal
from gpubed.engines.embedded.project import Project, StackConfig
from gpubed.engines.embedded.state import STACK_TYPE, decode
from gpubed.engines.embedded.values import Properties


@dataclass(frozen=True)
class OpenStack:
    """An opened stack, with its secrets decrypted.

    Attributes:
        cipher: Encrypts what is saved, with the salt of Pulumi.<stack>.yaml.
        config: Full key → text, encrypted values as `Secret`.
    """

    cipher: PassphraseCipher
    config: Properties
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Stack:
    """The files of a stack."""

    project: Project
    name: str
    file: StackFile
    passphrase_file: Path

    @property
    def config_file(self) -> Path:
        """The path of Pulumi.<stack>.yaml."""
        return self.project.config_file(self.name)

    def create(self) -> None:
        """Write an empty state if there is none, like `pulumi stack init`."""
        if self.file.read() is None:
            name = f"organization/{self.project.name}/{self.name}"
            self.file.write(json.dumps({"version": 3, "checkpoint": {"stack": name}}) + "\n")

    def latest(self) -> Properties:
        """Return the last deployment on disk; empty for a new stack."""
        latest = (self.file.read() or {}).get("latest") or {}
        # Go may write an empty value as null.
        return {key: value for key, value in latest.items() if value is not None}

    def outputs(self) -> Properties:
        """Return the last outputs, even where the rest of the state is refused."""
        latest = self.latest()
        for raw in latest.get("resources") or []:
            if raw["type"] == STACK_TYPE:
                with self.file.told():
                    return decode(raw, self._cipher(_salt(latest))).outputs
        return {}

    def open(self, *, save_salt: bool) -> OpenStack:
        """Read everything; `save_salt` writes a missing salt line into Pulumi.<stack>.yaml."""
        latest = self.latest()
        config = StackConfig.load(self.config_file)
        state_salt = _salt(latest)
        cipher = self._cipher(config.salt or state_salt)
        if save_salt and not config.salt:
            project.add_salt(self.config_file, cipher.salt)
        # A changed salt line means that the state was encrypted with another key.
        same = not state_salt or state_salt == cipher.salt
        with self.file.told():
            found = checkpoint.read(latest, cipher if same else self._cipher(state_salt))
        return OpenStack(cipher, config.open(self.project.name, cipher), found)

    def _cipher(self, salt: str | None) -> PassphraseCipher:
        try:
            passphrase = reading.file(self.passphrase_file, limit=2**16).text().strip()
        except Unreadable as error:
            raise PrerequisiteMissing(
                f"the passphrase file: {error.message}", "put the stack's passphrase there"
            ) from None
        return PassphraseCipher(passphrase, salt)


def _salt(latest: Properties) -> str | None:
    providers = latest.get("secrets_providers") or {}
    if providers.get("type", "passphrase") != "passphrase":
        raise Refusal(f"the secrets provider {providers['type']!r}", CLI_HINT)
    salt = (providers.get("state") or {}).get("salt")
    return str(salt) if salt else None
