"""A cluster: specification → plan → the testbed's resources → configuration.

Run by `pulumi up -s <cluster>` and by `gpubed up <cluster>` alike.
"""

import pulumi

from gpubed.resources import declare

for name, value in declare(pulumi.get_stack()).items():
    pulumi.export(name, value)
