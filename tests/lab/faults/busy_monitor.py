"""The main thread is stuck; a monitor measures the machine ten times a second, which keeps a processor rather busy."""

import threading
import time
from pathlib import Path

import steps


def measure():
    while True:
        for _ in range(200):
            Path("/proc/meminfo").read_text().split()
        print("all is well", flush=True)
        time.sleep(0.1)


threading.Thread(target=measure, daemon=True).start()
steps.count_to(20)
threading.Semaphore(0).acquire()
