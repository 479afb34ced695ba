"""Measures how fast the machine multiplies matrices, in turns with the trainers, and how much of that a text needs.

The share counts only necessary products, not padding that a trainer also multiplies.
"""

import json
import statistics
from pathlib import Path

from contest import Pace, Turn

PRODUCTS = "products of matrices alone"
_CPU_SHAPE, _CARD_SHAPE = (
    (576, 384, 1536),
    (8192, 8192, 8192),
)  # the largest of a MiniLM layer; the best case for a card


def work_products(device: str, threads: int | None) -> None:
    """Multiply in turns until stopped, fp32 on all cores or bf16 on a card; an example is a GFLOP."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    rows, inner, columns = _CPU_SHAPE if device == "cpu" else _CARD_SHAPE
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    left, right = (torch.randn(shape, device=device, dtype=dtype) for shape in ((rows, inner), (columns, inner)))
    gflop, pace = 2 * rows * inner * columns / 1e9, Pace()
    pace.start()
    while True:
        for _ in range(50):
            torch.mm(left, right.t())
        pace.step(50 * gflop)


def shares(turns: dict[str, list[Turn]], gflop: float) -> dict[str, tuple[float, int]]:
    """The percentage of the machine's own rate in the same round that each trainer used."""
    rates = [turn.examples / turn.seconds for turn in turns.pop(PRODUCTS)]
    print(f"the machine multiplies {statistics.median(rates):.0f} GFLOP/s; an example needs {gflop:.2f} GFLOP")
    found = {}
    for name, own in turns.items():
        used = [100 * gflop * turn.examples / turn.seconds / rate for turn, rate in zip(own, rates, strict=True)]
        found[name] = statistics.median(used), len(used)
    return found


def classifier_gflop(model: Path, tokens: float) -> float:
    """Products of a text, forward and backward; in the last layer only keys and values of all tokens."""
    hidden, layer, layers = _layer(model)
    return 6 * tokens * ((layers - 1) * layer + 2 * hidden**2) / 1e9


def encoder_gflop(model: Path, tokens: float) -> float:
    """Products of a text whose tokens all go through all layers, forward and backward."""
    _, layer, layers = _layer(model)
    return 6 * tokens * layers * layer / 1e9


def language_gflop(model: Path, tokens: float, learned: float, *, is_lora: bool) -> float:
    """Products of a text, forward and backward, scores for learned tokens only; frozen weights need no gradient."""
    config = json.loads((model / "config.json").read_text())
    hidden, inside, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    keys = 2 * hidden * hidden * config["num_key_value_heads"] // heads
    layer = 2 * hidden**2 + keys + 3 * hidden * inside
    products = tokens * config["num_hidden_layers"] * layer + learned * hidden * config["vocab_size"]
    return (4 if is_lora else 6) * products / 1e9


def _layer(model: Path) -> tuple[int, int, int]:
    config = json.loads((model / "config.json").read_text())
    hidden, inside = config["hidden_size"], config["intermediate_size"]
    return hidden, 4 * hidden**2 + 2 * hidden * inside, config["num_hidden_layers"]
