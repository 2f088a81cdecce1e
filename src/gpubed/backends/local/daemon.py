"""Clients of the Docker daemon, one per thread, and its errors as `GpubedError`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import docker
import paramiko
import requests
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.errors import APIError, DockerException
from paramiko.ssh_exception import NoValidConnectionsError

from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.testbeds.base import Identity

_TIMEOUT_S = 600  # for requests that boot a node or import an image
_LOOK_S = 20

# Raised for DOCKER_HOST=ssh://…
_OF_SSH = (paramiko.SSHException, ConnectionError, socket.gaierror, NoValidConnectionsError)
# Threads must not share a session of requests.
_own = threading.local()


def client() -> docker.DockerClient:
    """Return this thread's client; raise PrerequisiteMissing if the daemon does not answer."""
    return _client("client", _TIMEOUT_S)


def look() -> docker.DockerClient:
    """Return this thread's client for lists and facts, with a short timeout."""
    return _client("look", _LOOK_S)


def _client(name: str, timeout_s: int) -> docker.DockerClient:
    if not hasattr(_own, name):
        with errors("ask the Docker daemon"):
            made = docker.from_env(timeout=_LOOK_S)  # asks for the version
        made.api.timeout = timeout_s
        setattr(_own, name, made)
    found: docker.DockerClient = getattr(_own, name)
    return found


def identity() -> Identity:
    """Return the daemon's id, which its installation chose, and its name and address."""
    with errors("ask the Docker daemon for its id"):
        info = look().info()
    # Docker's library ignores the contexts of the command `docker`.
    way = os.environ.get("DOCKER_HOST") or DEFAULT_UNIX_SOCKET.replace("http+unix", "unix")
    return Identity(str(info["ID"]), f"the Docker daemon of {info['Name']} at {way}")


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """Turn Docker's exceptions into `GpubedError`; `doing` completes "cannot …"."""
    try:
        yield
    except APIError as error:
        why = reason(error)
        if "no space left on device" not in why:
            raise GpubedError(f"cannot {doing}: {why}") from None
        raise PrerequisiteMissing(
            f"cannot {doing}: the disk that holds Docker's data is full",
            "docker system df  # then: docker image prune, or free space otherwise",
        ) from None
    except (DockerException, requests.RequestException, *_OF_SSH) as error:
        raise _unreachable(error) from None


def reason(error: APIError) -> str:
    """Return the daemon's reason on one line."""
    return " ".join(str(error.explanation or error).split())


def is_conflict(error: APIError) -> bool:
    """Return whether the object to be removed is still in use."""
    # A network with endpoints answers 403, everything else 409.
    return error.status_code in (HTTPStatus.CONFLICT, HTTPStatus.FORBIDDEN)


def _unreachable(error: Exception) -> PrerequisiteMissing:
    text, way = str(error), os.environ.get("DOCKER_HOST")
    why, hint = " ".join(text.split()), "docker info"
    if "timed out" in text:
        why = "no reply in time"
        hint = "docker info  # if that hangs, too: sudo systemctl restart docker"
    if way:
        return PrerequisiteMissing(
            f"the Docker daemon at DOCKER_HOST={way} does not answer: {why}",
            "docker info  # asks the same daemon; for this machine's own: unset DOCKER_HOST",
        )
    if "PermissionError" in text or "Permission denied" in text:
        return PrerequisiteMissing(
            "this user may not use the Docker daemon",
            'sudo usermod -aG docker "$USER"  # then log in again',
        )
    if "FileNotFoundError" in text or "ConnectionRefusedError" in text:
        return PrerequisiteMissing(
            "the Docker daemon is not running, or Docker is not installed",
            "sudo apt-get install docker.io && sudo systemctl start docker",
        )
    return PrerequisiteMissing(f"the Docker daemon does not answer: {why}", hint)
