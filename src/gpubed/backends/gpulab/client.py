"""GPULab's REST API v4.0: JSON over TLS with a client certificate.

Reads are retried on server errors. Submissions are not: without an answer (`Unanswered`), the job
may exist.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args
from urllib.parse import quote, urlencode, urlsplit
from uuid import UUID

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gpubed.backends import pem
from gpubed.backends.gpulab.config import Config
from gpubed.core import reading, secret
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused
from gpubed.core.reading import Document

_PREFIX = "gpulab/v4.0/"
# Prefix of accounts of the former portal, which the service refuses.
_FORMER = "urn:publicid:IDN+wall2.ilabt.iminds.be+user+"
_TIMEOUT_S = 20.0
_TRIES = 5
_BACKOFF_S = 0.25
_STUMBLES = {500, 502, 503, 504}
_LONGEST_ANSWER = 64 * 2**20  # bytes, to bound memory
# Jobs per listing; the order of jobs and parameters for further pages are not documented.
PAGE = 500
_AGAIN = "see whether the network or the service is down, then repeat the command"
_MASTER = "backend.master must be the URL of the API v4.0"


def _as_written(value: object) -> object:
    # The service writes `MUSTHALT`; its own library also reads `Must Halt`.
    return value.upper().replace(" ", "") if isinstance(value, str) else value


Waiting = Literal["ONHOLD", "QUEUED", "ASSIGNED"]
Ended = Literal["FINISHED", "FAILED", "CANCELLED", "HALTED", "DELETED"]
State = Waiting | Literal["STARTING", "RUNNING", "MUSTHALT", "HALTING", "CANCELLING"] | Ended
WAITING, ENDED = set(get_args(Waiting)), set(get_args(Ended))


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class RemoteJob(_Model):
    """A job at GPULab."""

    uuid: str = Field(pattern=r"^[0-9a-fA-F-]{36}$")
    name: str
    description: str | None = None  # carries our labels
    status: Annotated[State, BeforeValidator(_as_written)] = Field(
        validation_alias=AliasPath("state", "status")
    )
    # The service's reasons for a job that waits.
    queued: tuple[str, ...] | None = Field(
        default=None, validation_alias=AliasPath("state", "scheduling", "queuedExplanations")
    )

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.status in ENDED

    @property
    def explanation(self) -> str:
        """The reasons for which it waits; may be empty."""
        return "; ".join(self.queued or ())


class Jobs(_Model):
    """The answer to `GET jobs`."""

    items: tuple[RemoteJob, ...]


class Event(_Model):
    """One line of a job's history."""

    msg: str | None = None


class Amount(_Model):
    """Total and free amount of a resource."""

    system_total: int = 0
    available: int = 0


class Gpu(_Model):
    """A kind of GPU."""

    name: str


class Cluster(_Model):
    """One of GPULab's clusters: workers of one kind."""

    cluster_id: int
    comment: str | None = None
    slave_count: int = 0
    gpu_model: tuple[Gpu, ...] = ()
    gpu: Amount = Amount()
    have_access: bool | None = None
    storage_paths_available: tuple[str, ...] | None = None


class Worker(_Model):
    """A machine that runs jobs; the service calls it a slave."""

    name: str
    cluster_id: int
    gpu_model: tuple[Gpu, ...] = ()
    gpu: Amount = Amount()
    cpu: Amount = Amount()
    cpu_memory_mb: Amount = Amount()
    cuda_version_major: int | None = None
    accepting_jobs: bool = True
    shutting_down: bool = False


class Unanswered(GpubedError):
    """The service did not answer, or failed; the request may have taken effect."""


class NoSuchJob(GpubedError):
    """The service does not have the job, or no longer."""


class Answer(NamedTuple):
    """An HTTP answer; `cut` tells whether the body was longer."""

    status: int
    body: bytes
    cut: bool


class Login(NamedTuple):
    """A certificate's user (`urn:publicid:IDN+<authority>+user+<name>`) and end of validity."""

    urn: str
    expires: datetime

    @classmethod
    def of(cls, config: Config) -> Login:
        """Read the certificate; raise PrerequisiteMissing if it is unusable."""
        path = Path(config.certificate).expanduser()
        login = cls(*pem.user(path, pem.read(path, "backend.certificate")))
        if login.urn.startswith(_FORMER):
            why = f"{login.urn} is an account of the former portal, which GPULab refuses"
            raise PrerequisiteMissing(why, pem.RENEW)
        return login

    def project_urn(self, project: str) -> str:
        """Return the URN of a project of the user's authority."""
        return f"{self.urn.partition('+user+')[0]}+project+{project}"


def _password(config: Config) -> bytes:
    if config.password_file is None:
        raise PrerequisiteMissing(
            f"the private key in {config.certificate} has a password",
            "put the password into a file of mode 0600 and set backend.password_file",
        )
    return secret.password(Path(config.password_file).expanduser(), "correct backend.password_file")


class Client:
    """A user's client of a GPULab service; PrerequisiteMissing for an unusable certificate."""

    def __init__(self, config: Config) -> None:
        self.login, self._config = Login.of(config), config
        path = Path(config.certificate).expanduser()
        self._context = pem.context(
            path, config.ca_bundle, "backend.ca_bundle", lambda: _password(config)
        )
        parts = urlsplit(config.master)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._path = parts.path + _PREFIX

    def version(self) -> str:
        """Return the newest client version, according to the service."""
        answer = self._read("version").json(dict[str, Any])
        return str(answer.get("latest_client_version", "unknown"))

    def submit(self, job: Mapping[str, Any]) -> str:
        """Submit a job; return its id. After Unanswered, the job may exist."""
        answer = self._once("POST", "jobs", json.dumps(job).encode(), "application/json")
        _expect_done(answer, "the job")
        text = answer.body.decode("ascii", "replace").strip().strip('"')
        try:
            return str(UUID(text))
        except ValueError:
            raise Unanswered(f"GPULab answered {text[:80]!r} instead of a job's id") from None

    def job(self, id_: str) -> RemoteJob:
        """Return a job's present state."""
        return self._read(f"jobs/{quote(id_)}").json(RemoteJob)

    def jobs(self) -> list[RemoteJob]:
        """Return the user's jobs that the service lists; `PAGE` of them may not be all."""
        query = urlencode({"user_urn": self.login.urn, "page_size": PAGE})
        return list(self._read(f"jobs?{query}").json(Jobs).items)

    def cancel(self, id_: str) -> None:
        """Request a job's cancellation; it may have ended or be gone."""
        path = f"jobs/{quote(id_)}/state/status"
        with suppress(NoSuchJob):
            answer = self._again("PUT", path, b"CANCELLED")
            if answer.status >= HTTPStatus.BAD_REQUEST and not self.job(id_).ended:
                _expect_done(answer, f"to cancel job {id_}")

    def is_over(self, id_: str) -> bool:
        """Return whether a job has ended or is gone."""
        try:
            return self.job(id_).ended
        except NoSuchJob:
            return True

    def log(self, id_: str, offset: int) -> bytes:
        """Return a job's log from a byte offset on; empty if there are no new bytes."""
        path = f"jobs/{quote(id_)}/log"
        answer = self._again("GET", path, headers={"Range": f"bytes={offset}-"})
        if answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
            return b""
        _expect_done(answer, "the log")
        if answer.status == HTTPStatus.PARTIAL_CONTENT:
            return answer.body
        if answer.cut and offset >= len(answer.body):
            raise GpubedError(
                f"the log of job {id_} is too long to read: over {_LONGEST_ANSWER} bytes"
            )
        return answer.body[offset:]

    def events(self, id_: str) -> list[Event]:
        """Return a job's history, oldest first."""
        return self._read(f"jobs/{quote(id_)}/debug").json(list[Event])

    def clusters(self) -> list[Cluster]:
        """Return the service's clusters."""
        return self._read("clusters").json(list[Cluster])

    def workers(self) -> list[Worker]:
        """Return the machines of all clusters."""
        return self._read("slaves").json(list[Worker])

    def _read(self, path: str) -> Document:
        answer = self._again("GET", path)
        what = path.partition("?")[0]
        _expect_done(answer, what)
        if answer.cut:
            raise GpubedError(
                f"GPULab's answer to {what} is too long: over {_LONGEST_ANSWER} bytes"
            )
        return reading.reply(
            answer.body, f"GPULab's answer to {what}", _MASTER, limit=_LONGEST_ANSWER
        )

    def _again(
        self,
        method: Literal["GET", "PUT"],
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send an idempotent request, up to five times."""
        for tried in range(_TRIES):
            with suppress(Unanswered) if tried < _TRIES - 1 else nullcontext():
                answer = self._once(method, path, body, "text/plain", headers)
                if answer.status == HTTPStatus.NOT_FOUND:
                    raise NoSuchJob(f"GPULab has no {path.partition('?')[0]}")
                return answer
            time.sleep(_BACKOFF_S * 2**tried)
        raise AssertionError("unreachable")

    def _once(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        kind: str = "text/plain",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = {"Content-Type": kind} if body is not None else {}
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=_TIMEOUT_S, context=self._context
        )
        try:
            connection.request(method, self._path + path, body, {**sent, **(headers or {})})
            answer = connection.getresponse()
            content = self._masked(answer.read(_LONGEST_ANSWER))
            cut = not answer.isclosed()
        except ssl.SSLError as error:
            raise self._tls(error) from error
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Unanswered(f"GPULab at {self._host} does not answer: {why}", _AGAIN) from error
        finally:
            connection.close()
        if answer.status in _STUMBLES:
            why = f"GPULab answers {answer.status} {answer.reason}: {_reason(content)}"
            raise Unanswered(why, _AGAIN)
        return Answer(answer.status, content, cut)

    def _masked(self, answer: bytes) -> bytes:
        """Mask passwords of registries, which are in the names of jobs' images."""
        for login in self._config.registries.values():
            pattern = rb"(?<=\b%s:)[^\s@/]+(?=@)" % re.escape(login.user.encode())
            answer = re.sub(pattern, lambda found: b"*" * len(found[0]), answer)
        return answer

    def _tls(self, error: ssl.SSLError) -> GpubedError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return PrerequisiteMissing(
                f"the certificate of {self._host} is not trusted: {error.verify_message}",
                "set backend.ca_bundle to the authority of the service",
            )
        said = str(error.reason or error).replace("_", " ").lower()
        if "alert" not in said:
            return Unanswered(f"the connection to GPULab at {self._host} broke: {said}", _AGAIN)
        # With TLS 1.3 a server rejects a certificate after the handshake.
        return Refused(
            f"GPULab refuses the certificate {self._config.certificate}: {said}", pem.RENEW
        )


def _expect_done(answer: Answer, what: str) -> None:
    if answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    why = _reason(answer.body)
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise Refused(
            f"GPULab forbids {what}: {why}",
            "backend.project must be one of your projects, and your account approved",
        )
    if answer.status < HTTPStatus.BAD_REQUEST:
        raise Refused(f"GPULab redirects {what} to a login page", _MASTER)
    raise Refused(f"GPULab refuses {what} ({answer.status}): {why}")


def _reason(body: bytes) -> str:
    text = " ".join(body[:2000].decode("utf-8", "replace").split())
    return text[:300] or "it gives no reason"
