"""Waits for ever for a native lock while holding the interpreter lock; other threads want to run."""

import ctypes
import threading
import time

import steps


def tick():
    while True:
        time.sleep(0.01)


for _ in range(2):
    threading.Thread(target=tick, daemon=True).start()
steps.count_to(20)
lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t of zeros is an open one
native = ctypes.PyDLL(None)  # keeps the interpreter lock during calls
native.pthread_mutex_lock(lock)
native.pthread_mutex_lock(lock)
