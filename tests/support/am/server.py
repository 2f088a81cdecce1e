"""The whole site on one port: authorities, aggregate and certificates, XML-RPC over HTTPS."""

import re
import socket
import ssl
import struct
import threading
import time
import traceback
import xmlrpc.client
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.parsers.expat import ExpatError

from cryptography import x509

from . import answers, faults, names, pki
from .accounts import Accounts
from .aggregate import Aggregate
from .federation import MemberAuthority, SliceAuthority
from .inventory import Inventory
from .ledger import Ledger
from .nodes import Ghosts
from .slices import Limits

PROJECT = "testproj"
_PATH = re.compile(r"/protogeni/xmlrpc/([a-z-]+)(?:/[\d.]+)?/?")
_BAD_CERTIFICATE, _PARSE, _SERVER = -32500, -32700, -32600
_NEVER_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Record:
    """A sliver that the server holds."""

    urn: str
    slice: str
    client_id: str
    operational: str
    error: str


@dataclass(frozen=True)
class Login:
    """A user's login file: a key, encrypted if it has a passphrase, and a certificate."""

    urn: str
    pem: Path
    passphrase: str | None


@dataclass(frozen=True)
class Caller:
    """The user who calls, and what shall go wrong."""

    urn: str
    fault: faults.Fault


@dataclass(frozen=True)
class Call:
    """A call that was served."""

    interface: str
    method: str


class AmServer:
    """A site for tests; a context manager that leaves nothing behind.

    Its certificate names `hosts`, too; `port` is a free one unless given.
    """

    def __init__(self, folder, *, nodes=None, site=None, limits=None, hosts=(), port=0):
        self.folder, self.site, limits = Path(folder), site or names.Site(), limits or Limits()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clock, self.faults = names.Clock(), faults.Faults()
        self.inventory = Inventory(limits.reload)
        self.nodes = nodes or Ghosts(self.site.authority)
        made = {name: pki.root(name) for name in {self.site.authority, self.site.accounts}}
        roots = [made[self.site.authority], made[self.site.accounts]]
        verifier = names.Credentials(self.clock)
        self.accounts = Accounts(self.site, verifier, self.clock, limits)
        self.ledger = Ledger(self.site, self.inventory, self.nodes, self.clock, limits, self.faults)
        self._accounts_root = roots[1]
        self._web = _Server(_context(roots, self.folder, hosts), self.faults, port)
        self.base = f"https://127.0.0.1:{self._web.server_port}/protogeni/xmlrpc"
        url = f"{self.base}/am"
        for interface in (
            Aggregate(self.site, self.ledger, self.inventory, verifier, self.faults, url),
            SliceAuthority(self.site, self.accounts, verifier),
            MemberAuthority(self.site, self.accounts, verifier),
        ):
            self._web.interfaces[interface.name] = interface
        self.bundle = self.folder / "ca.pem"
        self.bundle.write_text("".join(root.pem for root in roots))

    @property
    def am_url(self):
        return f"{self.base}/am/3.0"

    @property
    def sa_url(self):
        return f"{self.base}/geni-sa/2"

    @property
    def ma_url(self):
        return f"{self.base}/geni-ma/2"

    @property
    def calls(self):
        """All calls that were served, in order."""
        return self._web.calls

    def __enter__(self):
        self._web.start()
        return self

    def __exit__(self, *_):
        self._web.stop()
        self.ledger.close()
        self.nodes.close()

    def user(
        self,
        name="alice",
        *,
        passphrase="open sesame",
        projects=(PROJECT,),
        days=365.0,
        traditional=False,
        foreign=False,
    ):
        """Makes a user and a login file."""
        root = pki.root("elsewhere.example") if foreign else self._accounts_root
        urn = self.site.user(name)
        identity = pki.issue(root, name, urn=urn, days=days)
        self.accounts.projects[urn] = tuple(projects)
        path = self.folder / f"{name}.pem"
        path.touch(0o600)
        path.write_text(identity.key_pem(passphrase, traditional) + identity.pem + root.pem)
        return Login(urn, path, passphrase)

    def slivers(self):
        """Returns everything that the server holds for anybody."""
        self.ledger.sweep()
        with self.ledger.lock:
            return [
                Record(s.urn, slice_.urn, s.client_id, s.operational, s.error)
                for slice_ in self.ledger.slices.values()
                for s in slice_.all_slivers()
            ]


class _Server(ThreadingHTTPServer):
    """Serves the interfaces over TLS.

    Without a client's certificate every call ends in a fault, as Emulab's wrapper does; a
    certificate of another authority, or one that has expired, ends the handshake.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, context, script, port):
        super().__init__(("127.0.0.1", port), _Handler)
        self.interfaces, self.script, self.calls = {}, script, list[Call]()
        self._context = context
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def start(self):
        self._thread.start()

    def stop(self):
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


def _context(roots, folder, hosts):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    hosts, path = ("127.0.0.1", *hosts), folder / "server.pem"
    identity = pki.issue(roots[0], "am", hosts=hosts)
    path.touch(0o600)
    path.write_text(identity.key_pem() + identity.pem)
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
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        place = _PATH.fullmatch(self.path)
        interface = self.server.interfaces.get(place[1]) if place else None
        if interface is None:
            self._send(404, b"", "text/plain")
            return
        method, fault = "", faults.NONE
        certificate = self.connection.getpeercert(binary_form=True)
        try:
            if certificate is None:
                raise answers.Fault(_BAD_CERTIFICATE, "Invalid or missing certificate")
            arguments, method = _read(body)
            fault = self.server.script.take(interface.name, method)
            if self._cut(fault, after=False):
                return
            user = pki.urn_of(x509.load_der_x509_certificate(certificate))
            answer = _serve(interface, method, arguments, Caller(user, fault))
        except answers.Fault as error:
            answer = xmlrpc.client.dumps(xmlrpc.client.Fault(error.code, error.text)).encode()
        finally:
            self.server.calls.append(Call(interface.name, method))
        time.sleep(fault.late)
        if not self._cut(fault, after=True):
            self._send(200, fault.body(answer) if fault.body else answer, "text/xml")

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
    """Calls a method; returns the bytes of the answer."""
    if method not in interface.methods:
        raise answers.Fault(_SERVER, f"Unknown method {method}")
    arguments, fault = list(arguments), caller.fault
    try:
        if fault.refusal:
            raise fault.refusal
        if fault.arguments:
            arguments = fault.arguments(arguments)
        with interface.lock:
            call = re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()
            value = getattr(interface, call)(caller, *arguments)
        answer = interface.answer(value=fault.value(value) if fault.value else value)
    except answers.Refusal as refusal:
        answer = interface.answer(refusal.code, 0, refusal.output)
    except answers.Fault:
        raise
    except Exception as error:
        # Arguments of a wrong shape, most likely: the real server dies of them, too.
        traceback.print_exc()
        raise answers.Fault(_SERVER, f"{type(error).__name__}: {error}") from None
    return xmlrpc.client.dumps((answer,), methodresponse=True).encode()
