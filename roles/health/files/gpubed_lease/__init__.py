"""Acts on the end of a node's lease, without a controller. Standard library only."""
