"""Somebody in a node's place: an SSH server with a key of its own, who lets in whoever comes."""

import subprocess

from gpubed.core.paths import Project
from gpubed.nodes import allocation

KEY = "/etc/ssh/ssh_host_ed25519_key"
SWAP = f"rm -f {KEY}* && ssh-keygen -q -t ed25519 -N '' -f {KEY} && systemctl restart ssh"
_LOGINS = "journalctl --no-pager --output=cat --unit=ssh | grep -c 'Accepted publickey' || true"


class Granted:
    """A cluster's nodes as they were granted, and what became of them."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.paths = Project(cluster.root).cluster(cluster.name)
        self.allocation = allocation.load(self.paths.allocation)
        self.owns = {node.name: self._fingerprint(node.name) for node in self.allocation.nodes}
        self.seen = {}

    def inside(self, name, command):
        """Run a command in a node without SSH."""
        done = subprocess.run(
            ["docker", "exec", self.allocation.node(name).id, "sh", "-c", command],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def swap(self, *names):
        for name in names:
            self.inside(name, SWAP)
            self.seen[name] = self._fingerprint(name)
            assert self.seen[name] != self.owns[name]

    def logins(self, *names):
        """Return how often somebody logged in to nodes, or to each that is not itself any more."""
        return {name: int(self.inside(name, _LOGINS)) for name in names or self.seen}

    def says_whose(self, text, name="node-1"):
        """The words name the node, both keys and both ways to go on."""
        for part in (name, self.owns[name], self.seen[name], "--refresh", "do not continue"):
            assert part in text, text

    def _fingerprint(self, name):
        return self.inside(name, f"ssh-keygen -lf {KEY}.pub").split()[1]
