"""The hardware of nodes, and the drivers, bindings and settings that follow from it.

`facts` models the output of `gpubed-facts` (role `hardware`), `table` describes NVIDIA's GPUs,
`nvidia_driver` and `binding` choose by both. Only `host` and `report` connect to nodes.
"""
