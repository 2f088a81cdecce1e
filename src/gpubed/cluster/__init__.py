"""What the verbs of a cluster do: plan, up, status, watch, lease, audit and down."""
