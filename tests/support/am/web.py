"""XML-RPC over HTTPS: who calls, which method, what goes wrong on the way."""

import re
import socket
import ssl
import struct
import threading
import traceback
import xmlrpc.client
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.parsers.expat import ExpatError

from cryptography import x509

from . import answers, faults, pki

_PATH = re.compile(
    r"/protogeni/xmlrpc/(?:project/(?P<project>[^/]+)/)?(?P<interface>[a-z-]+)(?:/(?P<version>[\d.]+))?/?"
)
_BAD_CERTIFICATE, _PARSE, _SERVER = -32500, -32700, -32600
_NEVER_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Caller:
    """Who calls, what the URL says of project and version, and what shall go wrong."""

    urn: str
    project: str | None
    version: str | None
    fault: faults.Fault


@dataclass(frozen=True)
class Call:
    """A call that was served; `code` is None where nothing was answered."""

    interface: str
    method: str
    user: str
    code: int | None


class Server(ThreadingHTTPServer):
    """Serves the interfaces over TLS.

    Without a client's certificate every call ends in a fault, as Emulab's wrapper does; a
    certificate of another authority, or one that has expired, ends the handshake.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address, context, interfaces, script):
        super().__init__(address, _Handler)
        self.interfaces = {interface.name: interface for interface in interfaces}
        self.script = script
        self.calls: list[Call] = []
        self._context = context
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def start(self):
        """Serves in the background."""
        self._thread.start()

    def stop(self):
        """Takes no more calls."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def get_request(self):
        """Returns a connection whose handshake is still to come, in its own thread."""
        connection, address = super().get_request()
        secured = self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return secured, address

    def handle_error(self, request, client_address):
        """Keeps quiet about clients that are refused or go away; bugs are shown."""
        import sys

        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def context(server, roots, folder):
    """Returns the TLS context of a server.

    Args:
        server: Its Identity.
        roots: Identities whose users may come in.
        folder: For the key file that ssl wants to read.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = folder / "server.pem"
    path.touch(0o600)
    path.write_text(server.key_pem() + server.pem)
    made.load_cert_chain(path)
    made.load_verify_locations(cadata="".join(root.pem for root in roots))
    made.verify_mode = ssl.CERT_OPTIONAL
    return made


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    disable_nagle_algorithm = True

    def setup(self):
        self.request.settimeout(self.timeout)
        self.request.do_handshake()
        super().setup()

    def log_message(self, format, *args):  # noqa: A002
        """Says nothing."""

    def do_GET(self):
        """Answers a browser as the real server does: this is no page."""
        self._send(405, b"", "text/plain")

    def do_POST(self):
        """Serves a call."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        place = _PATH.fullmatch(self.path)
        interface = self.server.interfaces.get(place["interface"]) if place else None
        if interface is None:
            self._send(404, b"", "text/plain")
            return
        method, fault, code, answer = "", faults.NONE, None, b""
        user = self._user()
        try:
            if user is None:
                raise answers.Fault(_BAD_CERTIFICATE, "Invalid or missing certificate")
            arguments, method = _read(body)
            fault = self.server.script.take(interface.name, method)
            if self._cut(fault, after=False):
                return
            caller = Caller(user, place["project"], place["version"], fault)
            code, answer = _serve(interface, method, arguments, caller)
        except answers.Fault as error:
            answer = _fault(error)
        finally:
            self.server.calls.append(Call(interface.name, method, user or "", code))
        faults.wait(fault.late)
        if not self._cut(fault, after=True):
            self._send(200, fault.body(answer) if fault.body else answer, "text/xml")

    def _user(self):
        certificate = self.connection.getpeercert(binary_form=True)
        return pki.urn_of(x509.load_der_x509_certificate(certificate)) if certificate else None

    def _cut(self, fault, after):
        """Ends the exchange as the fault says; returns whether it did."""
        if fault.after != after or not (fault.status or fault.reset):
            return False
        if fault.status:
            self._send(fault.status, b"", "text/plain")
        else:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NEVER_LINGER)
            self.close_connection = True
            # Not the TLS way, which would say goodbye first.
            socket.socket.shutdown(self.connection, socket.SHUT_RD)
            self.connection.close()
        return True

    def _send(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _read(body):
    try:
        return xmlrpc.client.loads(body, use_builtin_types=True)
    except (ExpatError, ValueError, TypeError, xmlrpc.client.Error) as error:
        raise answers.Fault(_PARSE, f"not a call: {error}") from None


def _serve(interface, method, arguments, caller):
    """Calls a method; returns the code and the bytes of the answer."""
    known = {"GetVersion"} if interface.name == "am" and caller.version != "3.0" else None
    if method not in (known or interface.methods):
        raise answers.Fault(_SERVER, f"Unknown method {method}")
    make = interface.answer
    arguments, fault = list(arguments), caller.fault
    try:
        if fault.refusal:
            raise fault.refusal
        if len(arguments) < interface.methods[method]:
            raise answers.malformed("Missing arguments")
        if fault.arguments:
            arguments = fault.arguments(arguments)
        with interface.lock:
            value = getattr(interface, _snake(method))(caller, *arguments)
        value = fault.value(value) if fault.value else value
        code, answer = answers.SUCCESS, make(value=value)
    except answers.Refusal as refusal:
        code, answer = refusal.code, make(refusal.code, 0, refusal.output)
    except answers.Fault:
        raise
    except Exception as error:
        # Arguments of a wrong shape, most likely: the real server dies of them, too.
        traceback.print_exc()
        raise answers.Fault(_SERVER, f"{type(error).__name__}: {error}") from None
    if (interface.name, method) == ("am", "GetVersion"):
        answer["geni_api"] = answer["value"]["geni_api"]
    return code, xmlrpc.client.dumps((answer,), methodresponse=True).encode()


def _fault(error):
    return xmlrpc.client.dumps(xmlrpc.client.Fault(error.code, error.text)).encode()


def _snake(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
