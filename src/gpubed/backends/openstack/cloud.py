"""The connection to a cloud, with credentials as openstacksdk reads them.

openstacksdk reads clouds.yaml in the current folder or below $HOME; Pulumi's plugin reads it below
the account's home. With an entry of clouds.yaml, openstacksdk ignores OS_* variables. The plugin
completes the entry with them, which may lead to another project, so it gets the file and the entry,
and no other OS_* variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import openstack
import requests
from keystoneauth1 import exceptions as auth_errors
from openstack import exceptions
from openstack.config import OpenStackConfig, loader
from openstack.connection import Connection
from pydantic import BaseModel, TypeAdapter, ValidationError

from gpubed.core import reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused
from gpubed.core.reading import Unreadable
from gpubed.core.text import nearest_name
from gpubed.testbeds.base import Identity

_TIMEOUT_S = 60
_LONGEST = 500
# openstacksdk raises these for settings and answers of wrong types.
_RAISED = (
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
_CHOOSE = "set OS_CLOUD or backend.cloud to an entry of clouds.yaml, or source an openrc file"
_CORRECT = "correct it there; docs/how-to/openstack.md shows a complete entry"
_OPERATORS = "look at the cloud's status page, or ask its operators"
_PLACES = (loader.CONFIG_FILES, loader.SECURE_FILES)
_SELECTORS = ("OS_CLIENT_CONFIG_FILE", "OS_CLIENT_SECURE_FILE", "OS_CLOUD", "OS_CLOUD_NAME")
_DOMAIN = ("default_domain_name", "default_domain_id")
_USER = (
    ("username", "user_id"),
    ("user_domain_name", "user_domain_id", *_DOMAIN, "user_id"),
    ("password",),
)
_PROJECT = (
    ("project_name", "project_id", "trust_id"),
    ("project_domain_name", "project_domain_id", *_DOMAIN, "project_id", "trust_id"),
)
_CREDENTIAL = "v3applicationcredential"
# Login methods of Pulumi's plugin, each with tuples of keys, of which one must be present.
_NEEDED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "password": (*_USER, *_PROJECT),
    "v3password": (*_USER, *_PROJECT),
    "token": (("token",), *_PROJECT),
    "v3token": (("token",), *_PROJECT),
    _CREDENTIAL: (
        ("application_credential_secret",),
        ("application_credential_id", "application_credential_name"),
        ("application_credential_id", "username", "user_id"),
    ),
}


class _Unusable(Unreadable, PrerequisiteMissing):
    """A file of credentials is unusable."""


class _Entry(BaseModel):
    """Keys of an entry whose types openstacksdk does not check."""

    auth: dict[str, Any] = {}
    auth_type: str | None = None
    region_name: str | list[str] | None = None


class _Chosen(BaseModel):
    clouds: dict[str, _Entry]


class _Whole(BaseModel):
    clouds: dict[str, Any] | None = None


_WHOLE = TypeAdapter[_Whole | None](_Whole | None)


@cache
def connect(cloud: str | None, region: str | None) -> Connection:
    """Return the connection to a cloud and region; sends no request yet."""
    name = _chosen(cloud or os.environ.get("OS_CLOUD"))
    try:
        read = OpenStackConfig().get_one(name, region_name=region, validate=False).config
        fault = next(_faults({**read, **read["auth"]}, read["auth"]), None)
        if fault is None:
            limits: dict[str, Any] = {"api_timeout": _TIMEOUT_S, "connect_retries": 1}
            connection = openstack.connect(name, region_name=region, app_name="gpubed", **limits)
            verify, _ = connection.config.get_requests_verify_args()
            _ = connection.session  # loads the login plugin
    except _RAISED as error:
        fault = ("", f"cannot be used: {reading.short(_first_line(error))}")
    if fault:
        key, why = fault
        if name is None or name == os.environ.get("OS_CLOUD_NAME", "envvars"):
            place = f"OS_{key.removeprefix('auth.').upper() or '* variables'}"
            fix = "source the openrc file of the project again"
        else:
            place = f"{next(filter(None, _files()))}: clouds.{name}{key and f'.{key}'}"
            fix = _CORRECT
        raise PrerequisiteMissing(f"OpenStack: {reading.short(f'{place} {why}', 1000)}", fix)
    if not verify:
        raise PrerequisiteMissing(
            f"OpenStack: {connection.config.name} has verify: false, which gpubed does not accept",
            "name its certificate authority instead: cacert: in clouds.yaml, or OS_CACERT",
        )
    return connection


def entry(connection: Connection) -> str | None:
    """Return the entry of clouds.yaml that a connection uses; None if it uses OS_* variables."""
    name = str(connection.config.name)
    return None if name in (os.environ.get("OS_CLOUD_NAME", "envvars"), "defaults") else name


def interface(connection: Connection) -> str | None:
    """Return the kind of endpoints to use; None for the public ones."""
    wanted = connection.config.get_interface()
    first = wanted[0] if isinstance(wanted, list) else wanted
    return None if first in ("public", "publicURL") else first


def strays(connection: Connection) -> list[str]:
    """Return the OS_* variables that the plugin would add to an entry of clouds.yaml."""
    if entry(connection) is None:
        return []
    own = {name for name, value in os.environ.items() if name.startswith("OS_") and value}
    return sorted(own - {*_SELECTORS})


def plugin_variables(connected: Callable[[], Connection]) -> dict[str, str]:
    """Return variables that give the plugin file and entry; empty ones must be unset."""
    found = {}
    with suppress(GpubedError):  # the verb connects, too, and reports the error
        if path := _files()[0]:
            found["OS_CLIENT_CONFIG_FILE"] = str(path)
        connection = connected()
        if name := entry(connection):
            found |= {**dict.fromkeys(strays(connection), ""), "OS_CLOUD": name}
    return found


def identity(connection: Connection) -> Identity | None:
    """Return the project and region of a connection; None if its token has no project."""
    with errors("ask for the project"):
        project = connection.current_project_id
    if not project:
        return None
    region = connection.config.region_name or ""
    called = f"project {project} in {f'region {region}' if region else 'the only region'}"
    return Identity(f"{project} {region}".strip(), called)


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """Turn openstacksdk's exceptions into GpubedError; `doing` completes "cannot …"."""
    try:
        yield
    except (exceptions.SDKException, auth_errors.ClientException) as error:
        raise _explained(error, f"OpenStack: cannot {doing}") from None
    except (requests.exceptions.JSONDecodeError, *_RAISED) as error:
        raise Unreadable(
            f"OpenStack: cannot {doing}: the server is no OpenStack service "
            f"({type(error).__name__}: {_first_line(error)})",
            "look at auth_url, and for a proxy in between",
        ) from error


def _explained(error: Exception, failed: str) -> GpubedError:
    said = _first_line(error)
    if isinstance(error, auth_errors.Unauthorized):
        return Refused(
            f"OpenStack does not accept the credentials: {said}",
            "renew the password or application credential that clouds.yaml or OS_* name",
        )
    if isinstance(error, auth_errors.SSLError):
        hint = "name the certificate authority: cacert: in clouds.yaml, or OS_CACERT"
        return Refused(f"{failed}: {said}", hint)
    if isinstance(error, exceptions.HttpException) and error.status_code:
        return Refused(f"{failed}: {error.details or said}")
    if isinstance(error, auth_errors.ConnectTimeout):
        said, hint = f"{said} (no answer within {_TIMEOUT_S:g} s)", _OPERATORS
    elif isinstance(error, auth_errors.ConnectFailure | auth_errors.DiscoveryFailure):
        hint = "correct auth_url in clouds.yaml, or OS_AUTH_URL; this machine must reach it"
    elif isinstance(error, exceptions.ServiceDisabledException | auth_errors.EndpointNotFound):
        hint = "set backend.region, or region_name in clouds.yaml, to a region of the cloud"
    else:
        hint = _OPERATORS
    return GpubedError(f"{failed}: {said}", hint)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:_LONGEST]


def _files() -> list[Path | None]:
    """Return the clouds.yaml and the secure.yaml that openstacksdk reads."""
    found = []
    for variable, places in zip(_SELECTORS[:2], _PLACES, strict=True):
        named = os.environ.get(variable)
        if named and not os.access(named, os.R_OK):
            raise PrerequisiteMissing(
                f"OpenStack: {variable} names {named}, which cannot be read",
                f"unset {variable}, or write clouds.yaml there",
            )
        paths = [named] if named else places
        found.append(next((Path(one).resolve() for one in paths if os.access(one, os.R_OK)), None))
    return found


def _chosen(wanted: str | None) -> str | None:
    """Return the entry of clouds.yaml to use; None for OS_* variables."""
    files = {path: _read(path) for path in _files() if path}
    known = list(dict.fromkeys(name for entries in files.values() for name in entries))
    file, variables = next(iter(files), "clouds.yaml"), os.environ.get("OS_AUTH_URL")
    own = variables and wanted == os.environ.get("OS_CLOUD_NAME", "envvars")
    if wanted and wanted not in known and not own:
        close = reading.short(nearest_name(wanted, known))
        raise PrerequisiteMissing(f"OpenStack: {file} has no clouds.{wanted}: {close}", _CHOOSE)
    if not (wanted or variables) and len(known) != 1:
        several = f"has several entries: {reading.short(', '.join(known))}"
        none = (
            "has no entry below clouds" if files else "is in no folder that openstacksdk looks in"
        )
        raise PrerequisiteMissing(
            f"OpenStack: {file} {several if known else f'{none}, and OS_AUTH_URL is not set'}",
            _CHOOSE,
        )
    name = wanted or (None if variables else known[0])
    for path, entries in files.items():
        try:
            if name in entries:
                _Chosen.model_validate({"clouds": {name: entries[name]}})
        except ValidationError as error:
            why = reading.short(reading.words(error))
            raise _Unusable(f"OpenStack: {path}: {why}", _CORRECT) from None
    return name


def _read(path: Path) -> dict[str, Any]:
    try:
        whole = reading.file(path, _CORRECT, error=_Unusable).yaml(_WHOLE, merges=True)
    except _Unusable as error:
        # The message may quote a password.
        if found := re.search(r"(line \d+): .*\b(alias|tag)\b", error.message):
            why = "a value begins with * or !, which YAML does not take as text: put it in quotes"
            raise _Unusable(f"OpenStack: {path}: {found[1]}: {why}", _CORRECT) from None
        raise
    return (whole and whole.clouds) or {}


def _faults(entry: Mapping[str, Any], auth: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of an entry of clouds.yaml that are missing or invalid, with the reasons."""
    for key, value in auth.items():
        if not (value is None or isinstance(value, str)):
            yield f"auth.{key}", "must be a text: write it in quotes"
    kind, url = entry["auth_type"] or "password", entry.get("auth_url")
    if not url:
        yield "auth.auth_url", "is missing"
    elif not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        yield "auth.auth_url", "must be a URL, such as https://keystone.example.org:5000/v3"
    if kind not in _NEEDED:
        close = nearest_name(kind, sorted(_NEEDED))
        yield "auth_type", f"is {kind!r}, by which Pulumi's plugin cannot log in: {close}"
    elif kind != _CREDENTIAL and any(key.startswith("application_credential") for key in entry):
        yield "auth_type", f"must be {_CREDENTIAL}, since auth has an application credential"
    for keys in _NEEDED.get(kind, ()):
        if not any(entry.get(key) for key in keys):
            yield f"auth.{keys[0]}", "is missing"
