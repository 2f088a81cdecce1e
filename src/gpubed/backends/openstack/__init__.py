"""The OpenStack backend: nodes as servers of a cloud."""
