"""The checks of `gpubed verify`; each module has the checks of one subject.

A check is a function that takes a `Context` and yields `Check` results. A check that does not apply
yields a skip with the reason.
"""
