"""A data-loader worker keeps 16 MB more with every item."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

kept = []


class Leaking(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        kept.append(bytearray(16 << 20))
        time.sleep(0.05)
        return torch.zeros(4)


if __name__ == "__main__":
    for _ in DataLoader(Leaking(), num_workers=1, multiprocessing_context="fork"):
        pass
