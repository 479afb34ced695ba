"""A data-loader worker needs a lock that a thread of the parent held when it forked."""

import threading
import time

import steps
import torch
from torch.utils.data import DataLoader, Dataset

lock = threading.Lock()


class Locked(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with lock:
            return torch.zeros(4)


def hold():
    with lock:
        time.sleep(3)


if __name__ == "__main__":
    threading.Thread(target=hold).start()
    time.sleep(0.2)
    steps.count_to(10)
    for _ in DataLoader(Locked(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        pass
