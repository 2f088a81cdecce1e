"""What a campaign has measured: read, put together, drawn and written.

Deliberately absent: whatever measures. A report reads the files that `gpubed bench` wrote, and
nothing of the cluster, so it can be made when the nodes are gone.
"""
