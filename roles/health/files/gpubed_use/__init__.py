"""Records the users of a node, the kinds of use, and the idle time. Standard library only."""
