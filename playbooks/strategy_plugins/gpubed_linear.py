"""Mitogen's linear strategy where it is installed, on all processors and with less to do.

Mitogen pins its processes: with two or three processors, all workers share what
one for the connections leaves (`FixedPolicy` in `ansible_mitogen/affinity.py`), and
a run takes nearly twice as long.

Ansible makes a process for each task of a host, and each would load all filters and
tests of templates; loaded before, they are there in all.

Tasks run with the usual umask, whatever sudo, PAM or the login set on the host. For Ansible's own
connections, `gpubed_spec` sets it.

Elsewhere it is Ansible's own, so that the playbooks run with any ansible-core.
"""

import os

from ansible.plugins.loader import filter_loader, test_loader

try:
    from ansible_mitogen import affinity, services
except ImportError:
    from ansible.plugins.strategy.linear import StrategyModule
else:
    affinity.policy = affinity.Policy()  # the one that pins nothing
    _connect = services.ContextService._send_module_forwards

    def _with_umask(self, context):  # noqa: ANN001, ANN202  # mitogen has no types
        """Set the umask of a process on a node before the ones that it starts inherit it."""
        if not context.name.startswith("local"):  # files of this machine are the user's
            context.call(os.umask, 0o022)
        _connect(self, context)

    services.ContextService._send_module_forwards = _with_umask

    from ansible_mitogen.plugins.strategy.mitogen_linear import StrategyModule

for loader in (filter_loader, test_loader):
    list(loader.all())

__all__ = ["StrategyModule"]
