"""The ground: errors, files, quantities, locks; nothing of a cluster is known here."""
