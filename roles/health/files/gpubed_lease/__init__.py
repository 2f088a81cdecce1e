"""What a node does about the end of its lease, whoever is there. Standard library only."""
