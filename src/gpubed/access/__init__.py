"""Access to the services of a cluster: URLs, tunnels, browser and certificates."""
