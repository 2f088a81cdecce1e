"""The whole site: authorities, aggregate, certificates, on one port."""

import json
from dataclasses import dataclass
from pathlib import Path

from . import pki, web
from .accounts import Accounts, User
from .aggregate import Aggregate
from .clock import Clock
from .credential import Credentials
from .faults import Faults
from .federation import MemberAuthority, SliceAuthority
from .inventory import HARDWARE, Inventory
from .ledger import Ledger
from .nodes import Ghosts
from .site import Site
from .slices import Limits

PROJECT = "testproj"


@dataclass(frozen=True)
class Record:
    """A sliver that the server holds; `node` is the machine's name."""

    urn: str
    slice: str
    client_id: str
    node: str
    allocation: str
    operational: str
    error: str


@dataclass(frozen=True)
class Login:
    """A user's login file: an encrypted key and her certificate.

    Attributes:
        urn: Her name.
        pem: The file.
        passphrase: Of the key; None if it is not encrypted.
        ssh_key: The public key, as nodes get it.
    """

    urn: str
    pem: Path
    passphrase: str | None
    ssh_key: str


class AmServer:
    """A site for tests; a context manager that leaves nothing behind.

    Args:
        folder: Where certificates and keys go.
        nodes: What becomes of slivers; `Ghosts` by default.
        site: Names.
        hardware: What there is.
        limits: Lifetimes.
        host: Address to listen on, which is also in the server's certificate.
        port: Port; 0 for any.
        speed: How fast the server's clock runs.
    """

    def __init__(
        self,
        folder,
        *,
        nodes=None,
        site=None,
        hardware=HARDWARE,
        limits=None,
        host="127.0.0.1",
        port=0,
        speed=1.0,
    ):
        self.folder, self.site, limits = Path(folder), site or Site(), limits or Limits()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clock, self.faults = Clock(speed), Faults()
        self.inventory = Inventory(hardware, limits.reload)
        self.nodes = nodes or Ghosts(self.site.authority)
        self.users: dict[str, Login] = {}
        self._site_root = pki.root(self.site.authority)
        self._accounts_root = pki.root(self.site.accounts)
        verifier = Credentials(self.clock)
        self.accounts = Accounts(self.site, verifier, self.clock, limits)
        self.ledger = Ledger(self.site, self.inventory, self.nodes, self.clock, limits, self.faults)
        identity = pki.issue(self._site_root, "am", hosts=(host, "localhost"))
        tls = web.context(identity, [self._accounts_root, self._site_root], self.folder)
        self._web = web.Server((host, port), tls, [], self.faults)
        self.base = f"https://{host}:{self._web.server_port}/protogeni/xmlrpc"
        for interface in (
            Aggregate(
                self.site, self.ledger, self.inventory, verifier, self.faults, self.am_url[:-4]
            ),
            SliceAuthority(self.site, self.accounts, verifier),
            MemberAuthority(self.site, self.accounts, verifier),
        ):
            self._web.interfaces[interface.name] = interface
        self.bundle = self.folder / "ca.pem"
        self.bundle.write_text(self._site_root.pem + self._accounts_root.pem)

    @property
    def am_url(self):
        """URL of the aggregate, version 3."""
        return f"{self.base}/am/3.0"

    @property
    def sa_url(self):
        """URL of the slice authority, federation API."""
        return f"{self.base}/geni-sa/2"

    @property
    def ma_url(self):
        """URL of the member authority."""
        return f"{self.base}/geni-ma/2"

    @property
    def calls(self):
        """All calls that were served, in order."""
        return self._web.calls

    def __enter__(self):
        self._web.start()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Takes no more calls and removes all nodes."""
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
        keys=(),
    ):
        """Makes a user and her login file.

        Args:
            name: Login name.
            passphrase: Of her key; None leaves it open.
            projects: Names.
            days: How long her certificate holds; negative: it has expired.
            traditional: The key in OpenSSL's older form (`BEGIN RSA PRIVATE KEY`).
            foreign: The certificate is from an authority that the server does not know.
            keys: Further public keys that she has registered.
        """
        root = pki.root("elsewhere.example") if foreign else self._accounts_root
        user_urn, email = self.site.user(name), f"{name}@{self.site.accounts}"
        identity = pki.issue(root, name, urn=user_urn, email=email, days=days)
        self.accounts.users[user_urn] = User(
            name, user_urn, email, identity, tuple(projects), (identity.ssh_key, *keys)
        )
        path = self.folder / f"{name}.pem"
        path.touch(0o600)
        path.write_text(identity.key_pem(passphrase, traditional) + identity.pem + root.pem)
        self.users[name] = Login(user_urn, path, passphrase, identity.ssh_key)
        return self.users[name]

    def slivers(self):
        """Returns everything that the server holds for anybody."""
        self.ledger.sweep()
        with self.ledger.lock:
            return [
                Record(
                    sliver.urn,
                    slice_.urn,
                    sliver.request.client_id,
                    sliver.machine.name,
                    "geni_provisioned" if sliver.is_provisioned else "geni_allocated",
                    sliver.operational,
                    sliver.error,
                )
                for slice_ in self.ledger.slices.values()
                for sliver in slice_.all_slivers()
            ]

    def write_facts(self):
        """Writes what a client needs to know into `server.json`, and returns it."""
        facts = {
            "am_url": self.am_url,
            "sa_url": self.sa_url,
            "ma_url": self.ma_url,
            "ca_bundle": str(self.bundle),
            "component_manager": self.site.manager,
            "accounts_authority": self.site.accounts,
            "project": self.site.project(PROJECT),
            "images": self.site.image_urns,
            "users": {
                name: {"urn": login.urn, "pem": str(login.pem), "passphrase": login.passphrase}
                for name, login in self.users.items()
            },
        }
        (self.folder / "server.json").write_text(json.dumps(facts, indent=2) + "\n")
        return facts
