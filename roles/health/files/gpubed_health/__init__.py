"""Whether a node is well: looks at machine, GPUs and kernel's log. Standard library only."""
