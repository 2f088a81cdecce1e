"""Jobs, their runs, and the launchers that start ranks."""
