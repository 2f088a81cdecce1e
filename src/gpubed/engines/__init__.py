"""Who drives a stack: Pulumi's CLI, or the engine of our own."""
