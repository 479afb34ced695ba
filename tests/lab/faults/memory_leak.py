"""Takes 8 MB more at every step."""

import time

import steps

kept = []
for step in range(10_000):
    kept.append(bytearray(8 << 20))
    steps.enter("step", step + 1)
    time.sleep(0.05)
