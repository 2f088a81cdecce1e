"""Health checks of a node: machine, GPUs and the kernel's log. Standard library only."""
