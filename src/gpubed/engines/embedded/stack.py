"""A stack on disk: Pulumi.yaml, Pulumi.<stack>.yaml with the key's salt, and the last state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from gpubed.core import files, reading
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.core.reading import Unreadable
from gpubed.engines.embedded import checkpoint
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.checkpoint import Checkpoint
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.events import CLI_HINT, Refusal
from gpubed.engines.embedded.state import STACK_TYPE, decode
from gpubed.engines.embedded.values import Properties


class _ProjectFile(BaseModel):
    name: str = ""
    runtime: str | dict[str, Any] = ""
    main: str = "."
    config_dir: str = Field(default=".", alias="stackConfigDir")


class _StackConfigFile(BaseModel):
    salt: str | None = Field(default=None, alias="encryptionsalt")
    provider: str = Field(default="passphrase", alias="secretsprovider")
    key: Any = Field(default=None, alias="encryptedkey")


M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Project:
    """A Pulumi project; configuration values are not read."""

    name: str  # the project's name, part of every URN
    root: Path  # the folder of Pulumi.yaml; providers run here
    directory: Path  # the folder the program runs in
    entry: str  # what to run there: `.` for a `__main__.py`, else a file name
    config_dir: Path

    @classmethod
    def load(cls, root: Path) -> Project:
        """Read Pulumi.yaml; raise `UsageError` if it is missing, or not a Python project's."""
        root = root.resolve()
        file = _read(root / "Pulumi.yaml", _ProjectFile)
        language = file.runtime if isinstance(file.runtime, str) else file.runtime.get("name")
        if language != "python" or not file.name:
            raise UsageError(f"{root / 'Pulumi.yaml'} needs a name and `runtime: python`")
        main = root / file.main
        directory, entry = (main.parent, main.name) if main.is_file() else (main, ".")
        return cls(file.name, root, directory, entry, root / file.config_dir)


def salt_in(path: Path) -> str | None:
    """Return the salt of a stack's configuration, which may be missing."""
    config = _read(path, _StackConfigFile) if path.exists() else _StackConfigFile()
    if config.provider not in ("passphrase", "default", "") or config.key:
        raise Refusal(f"the secrets provider {config.provider!r}", path.name)
    return config.salt


def _read(path: Path, shape: type[M]) -> M:
    # None: a file without any key, such as one of comments, is valid.
    either: TypeAdapter[M | None] = TypeAdapter(shape | None)  # type: ignore[arg-type]
    try:
        return reading.file(path, f"correct {path}").yaml(either) or shape()
    except reading.Missing:
        raise UsageError(f"there is no {path}", "run this in a Pulumi project") from None


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
        return self.project.config_dir / f"Pulumi.{self.name}.yaml"

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
        """Return the last outputs, even if the engine refuses other parts of the state."""
        latest = self.latest()
        for raw in latest.get("resources") or []:
            if raw["type"] == STACK_TYPE:
                with self.file.explaining_damage():
                    return decode(raw, self._cipher(_salt(latest))).outputs
        return {}

    def open(self, *, save_salt: bool) -> tuple[Checkpoint, PassphraseCipher]:
        """Return the state, and the cipher for writing it, which has the configuration's salt.

        `save_salt` writes a missing salt line into Pulumi.<stack>.yaml.
        """
        latest, salt = self.latest(), salt_in(self.config_file)
        state_salt = _salt(latest)
        cipher = self._cipher(salt or state_salt)
        if save_salt and not salt:
            self.config_file.parent.mkdir(parents=True, exist_ok=True)
            rest = reading.file(self.config_file).text() if self.config_file.exists() else ""
            files.write(self.config_file, f"encryptionsalt: {cipher.salt}\n{rest}".encode())
        # A changed salt line means that the state was encrypted with another key.
        same = not state_salt or state_salt == cipher.salt
        with self.file.explaining_damage():
            found = checkpoint.read(latest, cipher if same else self._cipher(state_salt))
        return found, cipher

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
