"""How a person reaches the services of a cluster."""
