"""Nodes on this machine: the testbed in a box."""
