"""Two threads take two locks in opposite order."""

import threading
import time

import steps

one, two = threading.Lock(), threading.Lock()


def take(first, second):
    with first:
        time.sleep(0.3)
        with second:
            pass


steps.count_to(20)
threading.Thread(target=take, args=(two, one), daemon=True).start()
take(one, two)
