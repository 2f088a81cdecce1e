"""Reports of campaigns: reads, analyses, plots and writes what `gpubed bench` measured.

Deliberately absent: any measuring. A report reads the files of `gpubed bench` and nothing from the
cluster, so it can be made after `down`.
"""
