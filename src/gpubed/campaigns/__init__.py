"""Campaigns: a matrix of settings, run point by point on a cluster, each several times.

The file (`file`) is expanded to points (`matrix`), `drive` runs them, and `records` keeps each
result with its `provenance`. Points that have ended are never run again; a killed `gpubed bench`
loses the repetition at work, at most.
"""
