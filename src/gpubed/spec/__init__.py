"""What the user wants: `cluster.yml`, its shape, and the plan that follows from it alone."""
