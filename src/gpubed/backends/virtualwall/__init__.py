"""The Virtual Wall and other Fed4FIRE testbeds that speak GENI AM API v3."""
