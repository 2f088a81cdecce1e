"""What a testbed gave, and the ways to it."""
