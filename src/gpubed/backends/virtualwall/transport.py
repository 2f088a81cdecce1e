"""XML-RPC over TLS with the login's certificate.

Adds to the standard library: a deadline for a whole call, a limit on the answer's size, refusal of
entities, and one error class per kind of fault.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
import xmlrpc.client
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from gpubed.backends import pem
from gpubed.backends.virtualwall import documents, faults
from gpubed.backends.virtualwall.faults import Answered, Busy, Malformed, Unanswered
from gpubed.core import progress
from gpubed.core.errors import GpubedError, PrerequisiteMissing

_CONNECT_S = 20.0
_GROWTH, _MOST = 1.3, 2.0
_CHUNK = 2**16
# OpenSSL's codes for a certificate of another name or address, and for too short keys and hashes,
# which the Virtual Wall's documentation has users allow.
_OTHER_HOST, _WEAK = (62, 64), (66, 67, 68)
_NEW_TLS = (
    "it speaks no TLS 1.2 or later, which gpubed needs: ask its operators, or correct the URL"
)
_OLD_TLS = "backend.old_tls: true allows them; its certificate is verified all the same"
_NO_TLS = "and gpubed share no TLS"
# Verdict and hint by OpenSSL's reason. TLS 1.3 servers check our certificate after the handshake.
_REASONS = {
    "TOO_(SMALL|WEAK)": ("cannot be trusted", _OLD_TLS),
    "ALERT_(HANDSHAKE_FAILURE|INSUFFICIENT_SECURITY)": (_NO_TLS, _OLD_TLS),
    "ALERT_PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL": (_NO_TLS, _NEW_TLS),
    "ALERT_.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR)": (
        "does not accept the login certificate",
        pem.RENEW,
    ),
}
_URLS = "correct the URLs in backend"
_APPLICATION = -32500  # Emulab's code for many faults, which differ only in their texts
_ABOUT_LOGIN = re.compile("certificate|account", re.IGNORECASE)
_ABOUT_URL = re.compile("module specification|requested authority", re.IGNORECASE)


class Patience:
    """A deadline for a task, and waits between its attempts; both in seconds."""

    def __init__(self, interval: float, total: float) -> None:
        self._interval, self._tries = interval, 0
        self._deadline = time.monotonic() + total

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self._deadline - time.monotonic())

    def wait(self) -> None:
        """Sleep for the interval, at most until the deadline."""
        time.sleep(min(self._interval, self.left_s))

    def back_off(self, error: Unanswered) -> None:
        """Sleep after a failed call, longer each time; raise its error after the deadline."""
        if not self.left_s:
            raise error
        if not self._tries:
            retrying = f"{error.message}; trying again for {self.left_s:.0f} s at most"
            progress.emit("note", message=retrying)
        time.sleep(min(self._interval * min(_MOST, _GROWTH**self._tries), self.left_s))
        self._tries += 1


class Endpoint:
    """An XML-RPC server; failed calls are repeated for `quick_s` seconds.

    `clock_ahead_s` tells by how many seconds its clock was ahead at its last answer; 0 if unknown.
    """

    def __init__(
        self,
        url: str,
        context: ssl.SSLContext,
        what: str,
        poll_s: float = 1.0,
        quick_s: float = 0.0,
    ) -> None:
        self.url, self.what, self.clock_ahead_s = url, what, 0.0
        self._context, self._poll_s, self._quick_s = context, poll_s, quick_s
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._path = parts.path or "/"
        self._where = f"{self._host}:{self._port}"

    def ask(self, method: str, *args: Any, timeout: float = 60.0, repeats: bool = True) -> Any:
        """Call a method of GENI's or the federation's API; return its value.

        Only idempotent calls may be repeated (`repeats`).
        """
        patience = Patience(self._poll_s, self._quick_s if repeats else 0.0)
        while True:
            try:
                return self._value(method, self.call(method, *args, timeout=timeout))
            except Unanswered as error:
                patience.back_off(error)

    def _value(self, method: str, reply: Any) -> Any:
        what = f"{self.what} ({method})"
        code = reply.get("code") if isinstance(reply, dict) else None
        # Aggregates and some authorities wrap the number in a structure.
        codes: dict[str, Any] = code if isinstance(code, dict) else {"geni_code": code}
        geni, own = codes.get("geni_code"), codes.get("am_code")
        if not isinstance(geni, int):
            raise Malformed(f"the reply of {what} has no return code")
        if geni:
            # Emulab puts its own codes, above 17, only into am_code.
            own = own if geni == 2 and isinstance(own, int) and own > 17 else geni
            log = str(codes.get("protogeni_error_url") or "")
            output = str(reply.get("output") or "")
            raise faults.answered(what, own, output, log, is_authority="authority" in what)
        return reply.get("value")

    def call(self, method: str, *args: Any, timeout: float = 60.0) -> Any:
        """Call a method within `timeout` seconds in all.

        Raises:
            Unanswered: The call may have been carried out nevertheless.
            PrerequisiteMissing: The server is not trusted, its TLS is too old, or it does not
                accept our certificate.
        """
        body = xmlrpc.client.dumps(args, method, encoding="utf-8").encode()
        what = f"{self.what} ({method})"
        try:
            status, answer = self._post(body, time.monotonic() + timeout)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(what, error) from None
        if status != http.client.OK:
            raise _http_fault(what, status)
        return _decode(what, answer)

    def _post(self, body: bytes, deadline: float) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=_CONNECT_S, context=self._context
        )
        try:
            with progress.overdue(f"{self.what} at {self._where} does not answer yet"):
                connection.connect()
            sock = connection.sock
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            headers = {"Content-Type": "text/xml", "User-Agent": "gpubed"}
            try:
                connection.request("POST", self._path, body, headers)
                response = connection.getresponse()
            except (ConnectionError, ssl.SSLEOFError):
                # A TLS alert that arrived before our request is raised on reading.
                if connection.sock:
                    with suppress(ConnectionError, TimeoutError, ssl.SSLEOFError):
                        sock.recv(1)
                raise
            with suppress(TypeError, ValueError, OverflowError):  # no date, or without a timezone
                theirs = parsedate_to_datetime(response.getheader("Date", ""))
                self.clock_ahead_s = (theirs - datetime.now(UTC)).total_seconds()
            data = bytearray()
            # Deadline and limit also end answers that are slow or endless.
            while chunk := response.read1(_CHUNK):
                data += chunk
                if len(data) > documents.LIMIT:
                    raise Malformed(f"the answer is larger than {documents.LIMIT >> 20} MiB")
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError
                if not response.isclosed():
                    sock.settimeout(left)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            return response.status, bytes(data)
        finally:
            connection.close()

    def _failed(self, what: str, error: Exception) -> GpubedError:
        reason = str(error.reason or "") if isinstance(error, ssl.SSLError) else ""
        said = reason.split("ALERT_", 1)[-1].replace("_", " ").lower()
        server = f"{self.what} {self._where}"
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = "name the testbed's CA certificates in backend.ca"
            if error.verify_code in _OTHER_HOST:
                hint = f"its certificate is another host's: correct {self._host} in cluster.yml"
            elif error.verify_code in _WEAK:
                hint = _OLD_TLS
            return PrerequisiteMissing(f"{server} cannot be trusted: {error.verify_message}", hint)
        for pattern, (verdict, hint) in _REASONS.items():
            if re.search(pattern, reason):
                return PrerequisiteMissing(f"{server} {verdict}: {said}", hint)
        words = str(getattr(error, "strerror", None) or error) or type(error).__name__
        why = "time-out" if isinstance(error, TimeoutError) else words
        return Unanswered(
            f"{what} at {self._where} does not answer: {why}",
            "correct its URL in cluster.yml, or try again later; a firewall on the way out may "
            f"forbid port {self._port}",
        )


def _http_fault(what: str, status: int) -> Exception:
    if status in faults.BUSY:
        return faults.answered(what, status, "")
    if status >= http.client.INTERNAL_SERVER_ERROR:
        return Unanswered(f"{what} failed inside the server (HTTP {status})")
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        return PrerequisiteMissing(f"{what} does not accept the login (HTTP {status})", pem.RENEW)
    return Answered(f"{what} is refused (HTTP {status})", _URLS)


def _decode(what: str, data: bytes) -> Any:
    text = documents.bounded(data, f"what {what} answered")
    try:
        (value, *_), _ = xmlrpc.client.loads(text, use_builtin_types=True)
    except xmlrpc.client.Fault as fault:
        raise _fault(what, fault) from None
    except Exception as error:
        # The unmarshaller raises many kinds of errors for malformed answers.
        words = faults.clean(error)[:200] or type(error).__name__
        raise Malformed(f"{what} did not answer with XML-RPC: {words}") from None
    return value


def _fault(what: str, fault: xmlrpc.client.Fault) -> Exception:
    if fault.faultCode in faults.BUSY:
        return Busy(f"{what}: busy")
    whole = str(fault.faultString)
    said = faults.clean(whole)
    if fault.faultCode == _APPLICATION and _ABOUT_LOGIN.search(whole):
        return PrerequisiteMissing(f"{what} does not accept the login: {said}")
    if "internal error" in whole.lower():
        return Unanswered(f"{what} failed inside the server: {said}")
    return Answered(f"{what} is refused: {said}", _URLS if _ABOUT_URL.search(whole) else None)
