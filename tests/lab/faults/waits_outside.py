"""A step that waits for something outside that is alive, in one of many ways: `waits_outside.py KIND SECONDS PLACE`."""

import fcntl
import multiprocessing
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import steps

KIND, SECONDS, PLACE = sys.argv[1], float(sys.argv[2]), sys.argv[3]
NAP = f"import time; time.sleep({SECONDS})"
WORK = f"import time; end = time.time() + {SECONDS}\nwhile time.time() < end: pass"


def ask(path: str, data: bytes | None = None) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{PLACE}/{path}", data=data) as answer:
        return answer.read()


def rest(_: int) -> None:
    time.sleep(SECONDS / 2)


def child_sleeps() -> None:
    subprocess.run(["sleep", str(SECONDS)], check=True)


def child_is_captured() -> None:
    subprocess.run([sys.executable, "-S", "-c", NAP], check=True, capture_output=True)


def child_computes() -> None:
    subprocess.run([sys.executable, "-S", "-c", WORK], check=True)


def slow_http() -> None:
    ask("silent")


def download() -> None:
    ask("drip")


def judge() -> None:
    """Several requests at a time, each answered late, as by a model that judges answers."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, ["silent"] * 2))


def upload() -> None:
    ask("slow-reader", bytes(8 << 20))


def lock_of_another_job() -> None:
    with Path(PLACE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def lock_that_is_polled() -> None:
    with Path(PLACE).open("w") as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.2)


def license_server() -> None:
    """Refused until a seat is free, and asks again."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ask("refused")
        time.sleep(1)


def debugger_prompt() -> None:
    """A prompt that waits until somebody connects, as of remote debuggers."""
    with socket.create_server(("127.0.0.1", 0)) as prompt:
        prompt.settimeout(None)
        prompt.accept()


def map_with_workers() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(rest, range(4), chunksize=1)


def sleep_between_epochs() -> None:
    time.sleep(SECONDS)


if __name__ == "__main__":
    steps.count_to(20)
    globals()[KIND]()
    steps.count_to(20)
