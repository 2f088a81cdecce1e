"""How a job starts on a cluster: one module each, found by `registry`."""
