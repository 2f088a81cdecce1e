"""The granted nodes and networks of a cluster, and connections to them."""
