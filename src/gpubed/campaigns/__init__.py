"""Campaigns: a matrix of settings, run point by point on a cluster, each several times.

Data flows one way: the file (`file`) becomes points (`matrix`), `drive` runs them, and `records`
keeps what each gave, with what it was measured on (`provenance`). What has ended is never run
again; a run that was killed loses the point that was at work, at most.
"""
