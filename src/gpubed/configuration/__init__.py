"""From an allocation to configured nodes: roles, inventory, playbooks."""
