"""Prints a progress bar as tqdm does, without a terminal."""

import os
import sys
import time

for step in range(201):
    sys.stderr.write(f"\r {step}/200 of rank {os.environ['RANK']}")
    sys.stderr.flush()
    time.sleep(0.01)
sys.stderr.write("\n")
