"""Errors, files, quantities, locks, and the paths of a cluster; imports no other package."""
