"""The same cluster as a jFed experiment specification (ESpec).

A bundle that needs nothing of gpubed: the request, and one document that has every node
run the preparation. jFed makes the nodes, and writes an inventory with the groups that
the request names.
"""

from __future__ import annotations

import yaml

from gpubed.backends.virtualwall import prepare
from gpubed.spec.plan import ClusterPlan

RSPEC = "cluster.rspec"  # the name by which the document finds the request in its bundle


def specification(plan: ClusterPlan) -> str:
    """Return `experiment-specification.yml`; the request goes beside it, as `cluster.rspec`."""
    document = {
        "version": "1.0-basic",
        "rspec": RSPEC,
        "execute": [{"direct": _Literal(_script()), "sudo": True}],
        "output": [{"type": "SSH_INFO_CSV", "destination": "ssh_info.csv"}],
    }
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=200)
    return f"# {plan.cluster}: {len(plan.nodes)} nodes. Written by `gpubed export`.\n{text}"


def _script() -> str:
    # Addresses are left to the image: a bundle cannot know which machine it will be run on.
    return prepare.script().replace("NAT=''", "NAT='yes'", 1)


class _Literal(str):
    """Text that is written as it is."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes scripts as blocks."""


def _block(dumper: yaml.SafeDumper, data: _Literal) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(data), style="|")


_Dumper.add_representer(_Literal, _block)
