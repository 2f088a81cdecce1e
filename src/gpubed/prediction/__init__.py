"""What a training will give on a cluster: rate, step time, memory, each with an interval."""
