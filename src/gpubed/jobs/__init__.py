"""Jobs, their runs, and how ranks start."""
