"""The engines that drive a Pulumi stack: Pulumi's CLI, or the embedded engine."""
