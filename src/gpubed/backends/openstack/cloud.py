"""The connection to a cloud, and its answers in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import openstack
import requests
from keystoneauth1 import exceptions as auth_errors
from openstack import exceptions
from openstack.connection import Connection

from gpubed.backends.openstack import credentials
from gpubed.backends.openstack.config import Config
from gpubed.backends.openstack.patience import Patience
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused
from gpubed.core.reading import Unreadable
from gpubed.spec.backend_config import BackendConfig
from gpubed.testbeds.base import Identity

_TIMEOUT_S = 60
_LONGEST = 500
_RETRIES = 3  # of connections that are refused or reset
_ADDRESS = "correct auth_url in clouds.yaml, or OS_AUTH_URL; this machine must reach it"
_OPERATORS = "look at the cloud's status page, or ask its operators"


@cache
def connect(cloud: str | None, region: str | None) -> Connection:
    """Return the connection to a cloud; nothing has been asked yet.

    Raises:
        PrerequisiteMissing: There are no usable credentials, or TLS would not be verified.
    """
    entry = credentials.require(cloud, region)
    try:
        connection = openstack.connect(
            cloud=entry,
            region_name=region,
            app_name="gpubed",
            api_timeout=_TIMEOUT_S,
            connect_retries=_RETRIES,
        )
        verify, _ = connection.config.get_requests_verify_args()
        session = connection.session.session
    except credentials.RAISED as error:
        raise credentials.unusable(entry, error) from None
    if not verify:
        raise PrerequisiteMissing(
            f"OpenStack: {connection.config.name} is not to be verified (verify: false)",
            "name its certificate authority instead: cacert: in clouds.yaml, or OS_CACERT",
        )
    session.mount("https://", Patience(_TIMEOUT_S))
    return connection


def of(config: BackendConfig) -> Connection:
    """Return the connection to a cluster's cloud, as the options of its testbed say.

    Raises:
        PrerequisiteMissing: There are no credentials.
    """
    assert isinstance(config, Config)  # noqa: S101  # its kind was asked for
    return connect(config.cloud, config.region)


def entry(connection: Connection) -> str | None:
    """Return the entry of clouds.yaml that a connection uses; None where OS_* variables do."""
    name = str(connection.config.name)
    return None if name in (os.environ.get("OS_CLOUD_NAME", "envvars"), "defaults") else name


def interface(connection: Connection) -> str | None:
    """Return which of the cloud's endpoints are meant; None for the public ones."""
    wanted = connection.config.get_interface()
    first = wanted[0] if isinstance(wanted, list) else wanted
    return None if first in ("public", "publicURL") else first


def identity(connection: Connection) -> Identity | None:
    """Return which project and region a connection leads to; None of a token without.

    Raises:
        GpubedError: The cloud cannot be asked.
    """
    with errors("ask which project this is"):
        project = connection.current_project_id
    if not project:
        return None
    region = connection.config.region_name or ""
    called = f"project {project} in {f'region {region}' if region else 'the only region'}"
    return Identity(f"{project} {region}".strip(), called)


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """Turn the client's exceptions into ours.

    Args:
        doing: What was tried, for the message: "list the servers".
    """
    try:
        yield
    except (exceptions.SDKException, auth_errors.ClientException) as error:
        raise explained(error, doing) from None
    except requests.exceptions.JSONDecodeError:
        raise _foreign(doing, "") from None
    except credentials.RAISED as error:  # the client takes answers apart without a look
        raise _foreign(doing, f" ({type(error).__name__}: {_first_line(error)})") from error


def _foreign(doing: str, why: str) -> Unreadable:
    return Unreadable(
        f"OpenStack: cannot {doing}: what answers is no OpenStack service{why}",
        "look at auth_url, and for a proxy in between",
    )


def explained(error: Exception, doing: str) -> GpubedError:
    """Return the error that says what a cloud's answer means."""
    what = f"OpenStack: cannot {doing}: {_first_line(error)}"
    if isinstance(error, auth_errors.Unauthorized):
        return Refused(
            f"OpenStack does not accept the credentials: {_first_line(error)}",
            "renew the password or application credential that clouds.yaml or OS_* name",
        )
    if isinstance(error, auth_errors.MissingRequiredOptions):
        return PrerequisiteMissing(f"OpenStack: {_first_line(error)}", credentials.FIX)
    if isinstance(error, auth_errors.SSLError):
        return Refused(what, "name the certificate authority: cacert: in clouds.yaml, or OS_CACERT")
    if isinstance(error, auth_errors.ConnectTimeout):
        return GpubedError(
            f"{what} (no answer within {_TIMEOUT_S:.0f} s)",
            f"{_OPERATORS}; then run the same command again: it goes on where it stopped",
        )
    if isinstance(error, auth_errors.ConnectFailure | auth_errors.DiscoveryFailure):
        return GpubedError(what, _ADDRESS)
    if isinstance(error, exceptions.ServiceDisabledException | auth_errors.EndpointNotFound):
        return GpubedError(what, "gpubed doctor CLUSTER names the regions that there are")
    if isinstance(error, exceptions.HttpException) and error.status_code:
        return Refused(f"OpenStack: cannot {doing}: {error.details or _first_line(error)}")
    return GpubedError(what, _OPERATORS)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:_LONGEST]
