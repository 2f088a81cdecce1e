"""Errors, files, quantities, locks, paths of a cluster; imports no other package."""
