"""Hosts of one's own, reached by SSH."""
