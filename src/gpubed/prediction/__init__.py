"""What a training will give on a cluster: rate, step time, efficiency, memory, each with an interval."""
