"""Healthy: each step sleeps and polls for two seconds, as when data comes slowly."""

import time

import steps

for step in range(9):
    steps.enter("step", step + 1)
    for _ in range(20):
        time.sleep(0.1)
