"""The specification `cluster.yml`, its models, and the plan computed from it."""
