"""Mitogen's linear strategy where it is installed, on all processors and with less to do.

Mitogen pins its processes: with two or three processors, all workers share what
one for the connections leaves (`FixedPolicy` in `ansible_mitogen/affinity.py`), and
a run takes nearly twice as long.

Ansible makes a process for each task of a host, and each would load all filters and
tests of templates; loaded before, they are there in all.

Elsewhere it is Ansible's own, so that the playbooks run with any ansible-core.
"""

from ansible.plugins.loader import filter_loader, test_loader

try:
    from ansible_mitogen import affinity
except ImportError:
    from ansible.plugins.strategy.linear import StrategyModule
else:
    affinity.policy = affinity.Policy()  # the one that pins nothing

    from ansible_mitogen.plugins.strategy.mitogen_linear import StrategyModule

for loader in (filter_loader, test_loader):
    list(loader.all())

__all__ = ["StrategyModule"]
