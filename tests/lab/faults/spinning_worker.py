"""The main process waits for a worker that spins."""

import multiprocessing

import steps


def spin(connection):
    while True:
        pass


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=spin, args=(theirs,), daemon=True).start()
    steps.count_to(20)
    while not ours.poll(5):
        pass
