"""Nodes are broken on purpose, and it is checked what must hold afterwards. `gpubed chaos`."""
