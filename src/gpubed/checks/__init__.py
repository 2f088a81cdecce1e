"""What a verification looks at. Each module holds the checks of one subject.

A check is a function that takes a `Context` and yields `Check` results. What does
not apply is yielded as a skip with its reason, never left out.
"""
