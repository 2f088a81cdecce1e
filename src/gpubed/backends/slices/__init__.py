"""Machines of SLICES' basic infrastructure."""
