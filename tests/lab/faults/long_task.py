"""The main thread waits for a thread that backs off between tries, then for a pool whose only task takes its time."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import steps


def try_again(seconds):
    threading.Event().wait(seconds)
    time.sleep(seconds)
    return seconds


if __name__ == "__main__":
    steps.enter("load")
    with ThreadPoolExecutor(1) as threads:
        threads.submit(try_again, 6).result()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(time.sleep, [8])
