"""A pool's worker is killed in the middle of a task; the pool starts another and waits for the lost result for ever."""

import multiprocessing
import os
import signal

import steps


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    steps.count_to(20)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(die, [1])
