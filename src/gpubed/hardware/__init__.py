"""What nodes are made of, and what follows from it.

`facts` is the model of what nodes collected (role `hardware`), `table` what is
known about NVIDIA's GPUs, `drivers` and `binding` the choices. Nothing here talks
to a node.
"""
