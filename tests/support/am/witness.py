"""A client of the standard library, to look at the server with: no part of gpubed is in it."""

import ssl
import xmlrpc.client
from dataclasses import dataclass


@dataclass
class Answer:
    """An answer in one form, whichever interface gave it."""

    code: int
    value: object
    output: str


class Face:
    """One interface; its methods are called as they are named."""

    def __init__(self, url, context, timeout):
        self._proxy = xmlrpc.client.ServerProxy(url, _Transport(context, timeout))

    def __getattr__(self, method):
        def call(*arguments):
            answer = getattr(self._proxy, method)(*arguments)
            code = answer["code"]
            code = code["am_code"] if isinstance(code, dict) else code
            return Answer(code, answer["value"], answer["output"])

        return call


class Witness:
    """A user of a server."""

    def __init__(self, server, login, timeout=10):
        self.server, self.login = server, login
        made = ssl.create_default_context(cafile=str(server.bundle))
        if login:
            made.load_cert_chain(login.pem, password=login.passphrase)
        urls = (server.am_url, server.sa_url, server.ma_url)
        self.am, self.sa, self.ma = (Face(url, made, timeout) for url in urls)

    def credential(self):
        """Returns the user's credential."""
        return self.ma.get_credentials(self.login.urn, [], {}).value

    def slice(self, name="exp1", **fields):
        """Makes a slice; returns its URN and its credential."""
        project = self.server.site.project("testproj")
        wanted = {"SLICE_NAME": name, "SLICE_PROJECT_URN": project, **fields}
        mine = self.credential()
        made = self.sa.create("SLICE", mine, {"fields": wanted}).value["SLICE_URN"]
        return made, self.sa.get_credentials(made, mine, {}).value


class _Transport(xmlrpc.client.SafeTransport):
    def __init__(self, context, timeout):
        super().__init__(use_builtin_types=True, context=context)
        self._timeout = timeout

    def request(self, host, handler, request_body, verbose=False):
        # The library's own repeats a call whose connection broke, which may have had an effect.
        return self.single_request(host, handler, request_body, verbose)

    def make_connection(self, host):
        connection = super().make_connection(host)
        connection.timeout = self._timeout
        return connection


def rspec(*nodes, kind="pcgen05", lan="", **attributes):
    """Returns a request for nodes, joined by one LAN when there are several.

    Args:
        nodes: client_ids.
        kind: Hardware type.
        lan: `property` elements of the LAN.
        attributes: Of the nodes.
    """
    more = "".join(f' {name}="{value}"' for name, value in attributes.items())
    parts = [
        f'<node client_id="{name}" exclusive="true"{more}><sliver_type name="raw-pc"/>'
        f'<hardware_type name="{kind}"/><interface client_id="{name}:if0">'
        f'<ip address="192.168.77.{number}" netmask="255.255.255.0" type="ipv4"/>'
        "</interface></node>"
        for number, name in enumerate(nodes, 1)
    ]
    if len(nodes) > 1:
        members = "".join(f'<interface_ref client_id="{name}:if0"/>' for name in nodes)
        parts.append(f'<link client_id="lan-{nodes[0]}">{members}{lan}</link>')
    inside = "".join(parts)
    return f'<rspec xmlns="http://www.geni.net/resources/rspec/3" type="request">{inside}</rspec>'
