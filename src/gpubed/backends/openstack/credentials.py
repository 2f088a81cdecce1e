"""Credentials for a cloud: chooses the entry of clouds.yaml, and names the file and key of errors.

openstacksdk skips a file that is not YAML, and raises any exception for a missing or wrong value.
So the files are checked first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from keystoneauth1 import exceptions as auth_errors
from keystoneauth1 import loading
from openstack import config, exceptions
from openstack.config import loader, vendors
from pydantic import BaseModel, TypeAdapter, ValidationError

from gpubed.core import nearest, reading
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.reading import Unreadable

# What openstacksdk raises for settings and answers that it does not check.
RAISED = (
    exceptions.SDKException,
    auth_errors.ClientException,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
FIX = "set OS_CLOUD or backend.cloud to an entry of clouds.yaml, or source an openrc file"
_CORRECT = "correct it there; docs/how-to/openstack.md shows a complete entry"
_PLACES = "~/.config/openstack or /etc/openstack"
_URL = re.compile(r"https?://[^/\s]+(/\S*)?")


_USER = (
    ("username", "user_id"),
    ("user_domain_name", "user_domain_id", "default_domain_name", "default_domain_id", "user_id"),
)
_PROJECT = (
    ("project_name", "project_id", "trust_id"),
    (
        *("project_domain_name", "project_domain_id", "default_domain_name", "default_domain_id"),
        *("project_id", "trust_id"),
    ),
)
_PASSWORD, _TOKEN = (*_USER, ("password",), *_PROJECT), (("token",), *_PROJECT)
_OF_ITS_OWN = "v3applicationcredential"
# By the way to log in: of each line, one key must be there.
_NEEDED = {
    "password": _PASSWORD,
    "v3password": _PASSWORD,
    "token": _TOKEN,
    "v3token": _TOKEN,
    _OF_ITS_OWN: (
        ("application_credential_secret",),
        ("application_credential_id", "application_credential_name"),
        ("application_credential_id", "username", "user_id"),
    ),
}


class Unusable(Unreadable, PrerequisiteMissing):
    """openstacksdk cannot read a file of credentials."""


class _Entry(BaseModel):
    """The keys of an entry whose types openstacksdk does not check; there are many others."""

    auth: dict[str, Any] = {}
    auth_type: str | None = None
    profile: str | None = None
    region_name: str | list[str] | None = None
    regions: list[str | dict[str, Any]] | None = None
    interface: str | list[str] | None = None
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None


class _Whole(BaseModel):
    clouds: dict[str, Any] | None = None


_WHOLE = TypeAdapter[_Whole | None](_Whole | None)


class _Chosen(BaseModel):
    clouds: dict[str, _Entry]


def found() -> tuple[Path | None, Path | None]:
    """Return the clouds.yaml and the secure.yaml that openstacksdk reads.

    Raises:
        PrerequisiteMissing: A variable names a file that is not there.
    """
    plain = _first("OS_CLIENT_CONFIG_FILE", loader.CONFIG_FILES)
    return plain, _first("OS_CLIENT_SECURE_FILE", loader.SECURE_FILES)


def require(cloud: str | None, region: str | None) -> str | None:
    """Return the name of the entry of clouds.yaml to use; None for OS_* variables.

    Args:
        cloud: The entry that the specification names.
        region: The region that the specification names.

    Raises:
        PrerequisiteMissing: There are no credentials, or a value of them is missing or wrong.
    """
    there = [path for path in found() if path]
    entries = {path: _read(path) for path in there}
    name = _entry(cloud or os.environ.get("OS_CLOUD"), entries)
    profiles = []
    for path, clouds in entries.items():
        if name in clouds:
            _require_shape(path, {"clouds": {name: clouds[name]}})
            profiles.append(clouds[name].get("profile"))
    try:
        read = config.OpenStackConfig().get_one(name, region_name=region, validate=False)
        entry = read.config
        faults = chain(_unknown(profiles), _faults({**entry, **entry["auth"]}, entry["auth"]))
        fault = next(faults, None)
    except RAISED as error:
        raise unusable(name, error) from None
    if fault:
        key, why = fault
        raise PrerequisiteMissing(
            f"OpenStack: {reading.short(f'{_place(name, key)} {why}', 1000)}", _fix(name)
        )
    return name


def unusable(name: str | None, error: Exception) -> PrerequisiteMissing:
    """Return an error for what openstacksdk raised of settings."""
    why = reading.short(str(error).strip().partition("\n")[0] or type(error).__name__)
    return PrerequisiteMissing(f"OpenStack: {_place(name)}: {why}", _fix(name))


def _first(variable: str, places: list[str]) -> Path | None:
    named = os.environ.get(variable)
    if named and not os.access(named, os.R_OK):
        raise PrerequisiteMissing(
            f"OpenStack: {variable} names {named}, which cannot be read",
            f"unset {variable}, or write clouds.yaml there",
        )
    paths = [named] if named else places
    return next((Path(one).resolve() for one in paths if os.access(one, os.R_OK)), None)


def _read(path: Path) -> dict[str, Any]:
    """Return the entries of a file."""
    try:
        whole = reading.file(path, _CORRECT, error=Unusable).yaml(_WHOLE, merges=True)
    except Unusable as error:
        # The parser's own words may quote a password.
        if found := re.search(r"(line \d+): .*\b(alias|tag)\b", error.message):
            why = "a value begins with * or !, which YAML does not take as text: put it in quotes"
            raise Unusable(f"OpenStack: {path}: {found[1]}: {why}", _CORRECT) from None
        raise
    return (whole and whole.clouds) or {}


def _require_shape(path: Path, content: dict[str, Any]) -> None:
    try:
        _Chosen.model_validate(content)
    except ValidationError as error:
        raise Unusable(
            f"OpenStack: {path}: {reading.short(reading.words(error))}", _CORRECT
        ) from None


def _entry(name: str | None, entries: Mapping[Path, Mapping[str, Any]]) -> str | None:
    known = list(dict.fromkeys(one for clouds in entries.values() for one in clouds))
    file = next(iter(entries), "clouds.yaml")
    variables = os.environ.get("OS_AUTH_URL")
    if name:
        if name in known or (variables and name == os.environ.get("OS_CLOUD_NAME", "envvars")):
            return name
        close = reading.short(nearest.suggestion(name, known))
        raise PrerequisiteMissing(f"OpenStack: {file} has no clouds.{name}: {close}", FIX)
    if variables:
        return None
    if len(known) > 1:
        raise PrerequisiteMissing(
            f"OpenStack: {file} has several entries: {reading.short(', '.join(known))}",
            "set backend.cloud in cluster.yml, or OS_CLOUD, to one of them",
        )
    if not known:
        empty = f"{file} has no entry below clouds" if entries else f"no clouds.yaml in {_PLACES}"
        raise PrerequisiteMissing(f"OpenStack: {empty}, and OS_AUTH_URL is not set", FIX)
    return known[0]


def _place(name: str | None, key: str = "") -> str:
    """Return where a setting is: the file and key of an entry, or a variable."""
    if name is None or name == os.environ.get("OS_CLOUD_NAME", "envvars"):
        return f"OS_{key.removeprefix('auth.').upper() or '* variables'}"
    return f"{found()[0] or found()[1]}: clouds.{name}{key and f'.{key}'}"


def _fix(name: str | None) -> str:
    if name is None:
        return "source the openrc file of the project again"
    return _CORRECT


def _unknown(profiles: list[str | None]) -> Iterator[tuple[str, str]]:
    own = any(map(os.path.exists, loader.VENDOR_FILES))
    for name in filter(None, profiles):
        if not (own or "://" in name or vendors.get_profile(name)):
            yield "profile", f"is {name!r}, which openstacksdk does not know"


def _faults(said: Mapping[str, Any], auth: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the keys that are missing or wrong, each with what it must be."""
    for key, value in auth.items():
        if not (value is None or isinstance(value, str)):
            yield f"auth.{key}", "must be a text: write it in quotes"
    url, kind = said.get("auth_url"), said["auth_type"] or ""
    if not url:
        yield "auth.auth_url", "is missing"
    elif not _URL.fullmatch(url):
        yield "auth.auth_url", "must be a URL, such as https://keystone.example.org:5000/v3"
    elif url.rstrip("/").endswith(("/v2.0", "/v2")):
        yield "auth.auth_url", "is of Keystone's former version 2: it must end with /v3"
    yield from _of_login(said, kind)
    wanted = said.get("interface")
    for one in wanted if isinstance(wanted, list) else [wanted]:
        if one and one.removesuffix("URL") not in ("public", "internal", "admin"):
            yield "interface", f"is {one!r} (allowed: public, internal, admin)"
    for key in ("cacert", "cert", "key"):
        if (file := said.get(key)) and not Path(file).expanduser().exists():
            yield key, f"names {file}, which does not exist"


def _of_login(said: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    if kind not in (known := loading.get_available_plugin_names()):
        yield "auth_type", f"is {kind!r}: {nearest.suggestion(kind, sorted(known))}"
    if kind != _OF_ITS_OWN and any(key.startswith("application_credential") for key in said):
        yield "auth_type", f"must be {_OF_ITS_OWN}, since auth has an application credential"
    for keys in _NEEDED.get(kind, ()):
        if not any(said.get(key) for key in keys):
            yield f"auth.{keys[0]}", "is missing"
    if kind == _OF_ITS_OWN and (said.get("project_id") or said.get("project_name")):
        yield "auth.project_name", "must be removed: an application credential has its own project"
