"""A cluster: specification → plan → the testbed's resources → configuration.

Run by `pulumi up -s <cluster>` and by `gpubed up <cluster>` alike.
"""

import pulumi

from gpubed.cluster_drivers import configure, identity, key
from gpubed.paths import Project
from gpubed.plan import from_file
from gpubed.registry import backend

paths = Project.find().cluster(pulumi.get_stack())
cluster = from_file(paths.spec)
allocation = backend(cluster.backend).component(cluster, identity(cluster), key(cluster))
configure(cluster, allocation)
pulumi.export("allocation", allocation)
