"""A data-loader worker needs a native mutex that a thread of the parent held when it forked."""

import ctypes
import threading
import time

import steps
import torch
from torch.utils.data import DataLoader, Dataset

libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)


class Locked(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        libc.pthread_mutex_lock(mutex)
        return torch.zeros(4)


def hold():
    libc.pthread_mutex_lock(mutex)
    time.sleep(300)


if __name__ == "__main__":
    threading.Thread(target=hold, daemon=True).start()
    time.sleep(0.2)
    steps.count_to(10)
    for _ in DataLoader(Locked(), num_workers=1, multiprocessing_context="fork"):
        pass
