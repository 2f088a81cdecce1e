"""The Pulumi component that every backend's resources hang from."""

from __future__ import annotations

import pulumi


class Testbed(pulumi.ComponentResource):
    """Groups a cluster's resources under `gpubed:<backend>:Cluster`."""

    def __init__(self, backend: str, cluster: str) -> None:
        super().__init__(f"gpubed:{backend}:Cluster", cluster)

    @property
    def children(self) -> pulumi.ResourceOptions:
        """Options of every resource of the component."""
        return pulumi.ResourceOptions(parent=self)
