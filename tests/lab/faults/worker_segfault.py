"""A data-loader worker reads address 0."""

import ctypes
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1)
        if index == 3:
            ctypes.string_at(0)
        return torch.zeros(4)


if __name__ == "__main__":
    for _ in DataLoader(Broken(), num_workers=2, multiprocessing_context="fork"):
        pass
