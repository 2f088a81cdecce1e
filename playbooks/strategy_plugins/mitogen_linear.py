"""Mitogen's linear strategy, on all processors.

Mitogen pins its processes: with two or three processors, all workers share what
one for the connections leaves (`FixedPolicy` in `ansible_mitogen/affinity.py`), and
a run takes nearly twice as long.
"""

from ansible_mitogen import affinity

affinity.policy = affinity.Policy()  # the one that pins nothing

from ansible_mitogen.plugins.strategy.mitogen_linear import StrategyModule  # noqa: E402

__all__ = ["StrategyModule"]
