"""What nodes are made of, and what follows from it.

`facts` models what nodes collect (role `hardware`), `table` has what is known about NVIDIA's GPUs,
`drivers` and `binding` choose from both. Only `host` and `report` connect to nodes.
"""
