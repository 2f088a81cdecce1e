"""Configures the nodes of an allocation: inventory, roles, playbooks."""
