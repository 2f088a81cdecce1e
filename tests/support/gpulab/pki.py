"""Certificates in files: an authority, servers, and users as the portals make them."""

from cryptography.hazmat.primitives.asymmetric import ec

from support.am import pki


class Authority:
    """Signs certificates; `path` is its own."""

    def __init__(self, folder, name="Test Authority"):
        self.folder, self._root = folder, pki.root(name)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "ca.pem"
        self.path.write_text(self._root.pem)

    def server(self, *, expired=False):
        return self._written("server", expired, hosts=("localhost", "127.0.0.1"))

    def user(self, name="alice", *, expired=False, password=None, urn=None):
        """Return a login's PEM; the user's URN is a URI of the subject's alternative names."""
        urn = urn or f"urn:publicid:IDN+ilabt.imec.be+user+{name}"
        return self._written(name, expired, password, urn=urn)

    def _written(self, name, expired, password=None, **options):
        key, days = ec.generate_private_key(ec.SECP256R1()), -1 if expired else 30
        made = pki.issue(self._root, name, days=days, key=key, **options)
        path = self.folder / f"{name}{'-expired' if expired else ''}.pem"
        path.write_text(made.key_pem(password and password.decode()) + made.pem)
        path.chmod(0o600)
        return path
