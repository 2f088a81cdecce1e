"""Nodes as virtual machines, each run by a container that stands for it in Docker."""
