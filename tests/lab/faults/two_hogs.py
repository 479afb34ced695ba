"""Healthy: works at the lowest priority while every processor is taken by others."""

import os
import time

import steps


def hog():
    end = time.monotonic() + 18
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    # The hogs leave the tree: they are somebody else's work.
    for _ in range(os.cpu_count() or 1):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                hog()
            os._exit(0)
        os.wait()
    os.nice(19)
    for step in range(20):
        steps.enter("step", step + 1)
        sum(range(5_000_000))
