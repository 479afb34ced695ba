"""The main thread is stuck; one thread says every second that it lives, another redraws a progress bar."""

import threading
import time

import steps


def say():
    while True:
        print("still alive", flush=True)
        time.sleep(1)


def redraw():
    while True:
        print(f"\r 21%|██   | {time.time():.1f}", end="", flush=True)
        time.sleep(0.1)


threading.Thread(target=say, daemon=True).start()
threading.Thread(target=redraw, daemon=True).start()
steps.count_to(20)
threading.Semaphore(0).acquire()
