"""Tiny models are quicker on one thread, many times so on a busy machine."""

import torch

torch.set_num_threads(1)
