"""A GENI site for tests, and one of its users."""

import threading

import pytest

from support.am import AmServer, Ghosts, Limits
from support.am.witness import Witness, until


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server, and three users whose keys take a moment to make."""
    nodes = Ghosts("wall2.ilabt.example", boot_seconds=0.05)
    with AmServer(tmp_path_factory.mktemp("am"), nodes=nodes, limits=Limits(delete=0.05)) as made:
        for name in ("alice", "bob"):
            made.user(name, passphrase=None)
        made.user("mallory", passphrase=None, projects=("other",))
        yield made


@pytest.fixture
def server(site):
    """The server with nothing allocated and no faults."""
    site.faults.clear()
    yield site
    site.faults.clear()
    for slice_ in [*site.ledger.slices.values()]:
        slice_.shut_down = False
        until(lambda slice_=slice_: not slice_.busy and not slice_.starting)
        if slice_.urn in site.ledger.slices:
            site.ledger.delete(slice_, blocking=True)
    site.accounts.slices.clear()


@pytest.fixture
def alice(server):
    return Witness(server, server.users["alice"])


@pytest.fixture
def gate(server, monkeypatch):
    """Nodes start and go only while it is open; it opens at the end."""
    opened = threading.Event()
    for name in ("start", "remove"):
        act = getattr(server.nodes, name)
        monkeypatch.setattr(
            server.nodes, name, lambda *things, act=act: opened.wait(30) and act(*things)
        )
    yield opened
    opened.set()
