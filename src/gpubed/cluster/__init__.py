"""The life of a cluster: what the verbs plan, up, status and down do."""
