"""What a cluster's security groups let in, from the specification alone.

Two groups: `nodes` on all ports lets in whoever is in it too, `door` on the control
port of the head lets in SSH and what the specification opens. What goes out is free,
as OpenStack has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from gpubed.backends.openstack.config import Config
from gpubed.spec.clusterspec import ClusterSpec

SSH = 22


@dataclass(frozen=True)
class Rule:
    """One rule of the group `door`."""

    protocol: str
    port: int
    source: IPv4Network
    comment: str = ""

    @property
    def name(self) -> str:
        """Unique in a cluster, and the same as long as the rule is."""
        return f"{self.protocol}-{self.port}-{self.source}".replace("/", "-")


def door(spec: ClusterSpec, config: Config) -> list[Rule]:
    """Return what is let in from outside: only what was written down, each once."""
    rules = [Rule("tcp", SSH, source, "SSH") for source in config.access_from]
    rules += [Rule(o.protocol, o.port, o.source, o.comment) for o in spec.firewall.open]
    return list({rule.name: rule for rule in rules}.values())
