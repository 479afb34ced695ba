"""A data-loader worker tokenizes on threads that exist only in its parent."""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "true"

import steps
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader, Dataset

tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
texts = ["a b c " * 50] * 500


class Tokenized(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(len(tokenizer.encode_batch(texts)))


if __name__ == "__main__":
    tokenizer.encode_batch(texts)
    steps.count_to(10)
    for _ in DataLoader(Tokenized(), num_workers=1, multiprocessing_context="fork"):
        pass
