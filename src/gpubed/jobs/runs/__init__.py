"""Runs of jobs: what each was, kept so that it can be repeated, and how they compare."""
