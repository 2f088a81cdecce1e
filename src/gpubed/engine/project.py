"""Pulumi.yaml and Pulumi.<stack>.yaml: the project, its configuration and the salt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpubed import files
from gpubed.engine.cipher import PassphraseCipher
from gpubed.engine.failures import Refusal
from gpubed.engine.values import Properties, Secret
from gpubed.errors import GpubedError, UsageError


@dataclass(frozen=True)
class Project:
    """What Pulumi.yaml says.

    Attributes:
        name: The project's name, part of every URN.
        root: The folder of Pulumi.yaml; providers run here.
        directory: The folder the program runs in.
        entry: What to run there: `.` for a `__main__.py`, else a file name.
        config_dir: Where Pulumi.<stack>.yaml lies.
    """

    name: str
    root: Path
    directory: Path
    entry: str
    config_dir: Path

    @classmethod
    def load(cls, root: Path) -> Project:
        """Reads Pulumi.yaml.

        Raises:
            UsageError: There is none, or it is not a Python project.
            Refusal: It uses configuration schemas.
        """
        root = root.resolve()
        raw = _read_mapping(root / "Pulumi.yaml")
        runtime = raw.get("runtime")
        language = runtime.get("name") if isinstance(runtime, dict) else runtime
        if language != "python" or not isinstance(raw.get("name"), str):
            raise UsageError(f"{root / 'Pulumi.yaml'} needs a name and `runtime: python`")
        if any(not key.startswith("pulumi:") for key in raw.get("config") or {}):
            raise Refusal("project-level configuration", "Pulumi.yaml")
        main = root / raw.get("main", ".")
        directory, entry = (main.parent, main.name) if main.is_file() else (main, ".")
        return cls(raw["name"], root, directory, entry, root / raw.get("stackConfigDir", "."))

    def config_file(self, stack: str) -> Path:
        """Returns the path of the stack's configuration."""
        return self.config_dir / f"Pulumi.{stack}.yaml"


@dataclass(frozen=True)
class StackConfig:
    """What Pulumi.<stack>.yaml says; values are text, sealed ones still sealed."""

    salt: str | None
    values: Properties

    @classmethod
    def load(cls, path: Path) -> StackConfig:
        """Reads the file; a missing one is an empty configuration.

        Raises:
            Refusal: Secrets are kept by another provider than a passphrase.
        """
        raw = _read_mapping(path) if path.exists() else {}
        provider = raw.get("secretsprovider", "passphrase")
        if provider not in ("passphrase", "default", "") or raw.get("encryptedkey"):
            raise Refusal(f"the secrets provider {provider!r}", path.name)
        if raw.get("environment"):
            raise Refusal("Pulumi ESC environments", path.name)
        return cls(raw.get("encryptionsalt"), raw.get("config") or {})

    def open(self, project: str, cipher: PassphraseCipher) -> Properties:
        """Returns full key → text, `Secret` where any part of the value is sealed."""
        opened: Properties = {}
        for key, value in self.values.items():
            full = key if ":" in key else f"{project}:{key}"
            plain, sealed = _open(value, cipher)
            text = plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))
            opened[full] = Secret(text) if sealed else text
        return opened


def add_salt(path: Path, salt: str) -> None:
    """Puts the salt line into the stack's configuration, leaving the rest as written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = path.read_text(encoding="utf-8") if path.exists() else ""
    files.write(path, f"encryptionsalt: {salt}\n{rest}".encode())


def _open(value: Any, cipher: PassphraseCipher) -> tuple[Any, bool]:
    if isinstance(value, dict):
        if set(value) == {"secure"}:
            return cipher.decrypt(value["secure"]), True
        pairs = {key: _open(item, cipher) for key, item in value.items()}
        return {k: v for k, (v, _) in pairs.items()}, any(s for _, s in pairs.values())
    if isinstance(value, list):
        items = [_open(item, cipher) for item in value]
        return [v for v, _ in items], any(s for _, s in items)
    return value, False


def _read_mapping(path: Path) -> Properties:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no {path}", "run this in a Pulumi project") from None
    except yaml.YAMLError as error:
        raise GpubedError(f"{path} is not valid YAML: {error}") from error
    if raw is not None and not isinstance(raw, dict):
        raise GpubedError(f"{path} must be a mapping")
    return raw or {}
