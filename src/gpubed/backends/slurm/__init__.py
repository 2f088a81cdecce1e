"""Slurm: a cluster that exists runs jobs, as one of its users, and lends no nodes."""
