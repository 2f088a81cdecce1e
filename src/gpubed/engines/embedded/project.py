"""Pulumi.yaml and Pulumi.<stack>.yaml: the project, its configuration and the salt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, JsonValue, TypeAdapter

from gpubed.core import files, reading
from gpubed.core.errors import UsageError
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.failures import Refusal
from gpubed.engines.embedded.values import Properties, Secret


class _Runtime(BaseModel):
    name: str = ""


class _ProjectFile(BaseModel):
    name: str = ""
    runtime: str | _Runtime = ""
    main: str = "."
    config: Properties | None = None
    config_dir: str = Field(default=".", alias="stackConfigDir")


class _StackConfigFile(BaseModel):
    salt: str | None = Field(default=None, alias="encryptionsalt")
    provider: str = Field(default="passphrase", alias="secretsprovider")
    key: Any = Field(default=None, alias="encryptedkey")
    environment: Any = None
    config: dict[str, JsonValue] | None = None


M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Project:
    """A Pulumi project.

    Attributes:
        name: The project's name, part of every URN.
        root: The folder of Pulumi.yaml; providers run here.
        directory: The folder the program runs in.
        entry: What to run there: `.` for a `__main__.py`, else a file name.
    """

    name: str
    root: Path
    directory: Path
    entry: str
    config_dir: Path

    @classmethod
    def load(cls, root: Path) -> Project:
        """Read Pulumi.yaml.

        Raises:
            UsageError: The file is missing, or it is not a Python project's.
            Refusal: The file uses configuration schemas.
        """
        root = root.resolve()
        said = _read(root / "Pulumi.yaml", _ProjectFile)
        language = said.runtime if isinstance(said.runtime, str) else said.runtime.name
        if language != "python" or not said.name:
            raise UsageError(f"{root / 'Pulumi.yaml'} needs a name and `runtime: python`")
        if any(not key.startswith("pulumi:") for key in said.config or {}):
            raise Refusal("project-level configuration", "Pulumi.yaml")
        main = root / said.main
        directory, entry = (main.parent, main.name) if main.is_file() else (main, ".")
        return cls(said.name, root, directory, entry, root / said.config_dir)

    def config_file(self, stack: str) -> Path:
        """Return the path of the stack's configuration."""
        return self.config_dir / f"Pulumi.{stack}.yaml"


@dataclass(frozen=True)
class StackConfig:
    """A stack's configuration; values are text, encrypted ones still encrypted."""

    salt: str | None
    values: Properties

    @classmethod
    def load(cls, path: Path) -> StackConfig:
        """Read the file, which may be missing; raise `Refusal` unless secrets use a passphrase."""
        said = _read(path, _StackConfigFile) if path.exists() else _StackConfigFile()
        if said.provider not in ("passphrase", "default", "") or said.key:
            raise Refusal(f"the secrets provider {said.provider!r}", path.name)
        if said.environment:
            raise Refusal("Pulumi ESC environments", path.name)
        return cls(said.salt, said.config or {})

    def open(self, project: str, cipher: PassphraseCipher) -> Properties:
        """Return full key → text; values with an encrypted part are `Secret`."""
        opened: Properties = {}
        for key, value in self.values.items():
            full = key if ":" in key else f"{project}:{key}"
            plain, sealed = _open(value, cipher)
            text = plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))
            opened[full] = Secret(text) if sealed else text
        return opened


def add_salt(path: Path, salt: str) -> None:
    """Add the salt line to the stack's configuration, and leave the rest as written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = reading.file(path).text() if path.exists() else ""
    files.write(path, f"encryptionsalt: {salt}\n{rest}".encode())


def _open(value: Any, cipher: PassphraseCipher) -> tuple[Any, bool]:
    if isinstance(value, dict):
        if set(value) == {"secure"} and isinstance(value["secure"], str):
            return cipher.decrypt(value["secure"]), True
        pairs = {key: _open(item, cipher) for key, item in value.items()}
        return {k: v for k, (v, _) in pairs.items()}, any(s for _, s in pairs.values())
    if isinstance(value, list):
        items = [_open(item, cipher) for item in value]
        return [v for v, _ in items], any(s for _, s in items)
    return value, False


def _read(path: Path, shape: type[M]) -> M:
    either: TypeAdapter[M | None] = TypeAdapter(shape | None)  # type: ignore[arg-type]
    try:
        # A file of comments alone is a valid document.
        return reading.file(path, f"correct {path}").yaml(either) or shape()
    except reading.Missing:
        raise UsageError(f"there is no {path}", "run this in a Pulumi project") from None
