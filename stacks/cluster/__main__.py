"""A cluster: specification → plan → the testbed's resources → configuration.

Run by `pulumi up -s <cluster>` and by `gpubed up <cluster>` alike.
"""

import pulumi

from gpubed.cluster.drivers import configure, identity
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.testbeds.registry import backend
from gpubed.testbeds.specification import load_plan

try:
    paths = Project.find().cluster(pulumi.get_stack())
    cluster = load_plan(paths.spec_in_use, paths.name)
except GpubedError as error:
    raise pulumi.RunError(str(error)) from None
ident = identity(cluster)
allocation = backend(cluster.backend).component(cluster, ident["uuid"], ident["public_key"])
configure(cluster, allocation)
pulumi.export("allocation", allocation)
