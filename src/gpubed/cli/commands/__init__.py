"""One file per verb: `command`, its help in the docstring, an `EXAMPLE` and its `PLACE`."""
