"""What a verification looks at. Each module holds the checks of one subject.

A check is a function that takes a `Context` and yields `Check` results. If it does not apply, it
yields a skip with the reason.
"""
