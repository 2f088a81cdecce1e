"""One file per verb: `command`, its help in the docstring, and an `EXAMPLE`."""
