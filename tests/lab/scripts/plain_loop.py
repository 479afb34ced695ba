"""A loop written by hand: OUTPUT [name=value ...]."""

import ctypes
import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

OPTIONS = {"steps": 12, "workers": 0, "crash_at": -1, "compile": False, "autocast": False}


class Rows(Dataset):
    def __len__(self):
        return 8 * OPTIONS["steps"]

    def __getitem__(self, at):
        if at == OPTIONS["crash_at"]:
            ctypes.string_at(0)
        return torch.full((4,), float(at % 5)), at % 2


def main():
    torch.manual_seed(0)
    more = {"prefetch_factor": 1, "persistent_workers": True, "timeout": 60} if OPTIONS["workers"] else {}
    loader = DataLoader(Rows(), 8, num_workers=OPTIONS["workers"], **more)
    model = nn.Linear(4, 2)
    run = torch.compile(model) if OPTIONS["compile"] else model
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, labels in loader:
        with torch.autocast("cpu", torch.bfloat16, enabled=OPTIONS["autocast"]):
            loss = nn.functional.cross_entropy(run(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(inputs).argmax(1) == labels).sum()) for inputs, labels in loader)
    torch.save(model.state_dict(), sys.argv[1])
    print("finished", right, "mps", torch.backends.mps.is_available(), "cuda", torch.cuda.is_available())
    print("threads", torch.get_num_threads())


if __name__ == "__main__":
    OPTIONS.update({name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[2:])})
    main()
