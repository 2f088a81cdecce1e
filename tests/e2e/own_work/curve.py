"""Rank 0 writes a figure every 100 ms, for a minute."""

import json
import os
import time

for step in range(600):
    if os.environ["RANK"] == "0":
        with open("metrics.jsonl", "a") as file:
            print(json.dumps({"step": step, "loss": 1 / (1 + step)}), file=file)
    time.sleep(0.1)
