"""What a node is used for, by whom, and since when by nobody. Standard library only."""
