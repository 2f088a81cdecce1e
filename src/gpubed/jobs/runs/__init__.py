"""Runs of jobs: their records, with which they are repeated and compared, and active runs."""
