"""95% confidence intervals of metrics: how much a metric would vary with other rows of the same kind.

Shares of rows, such as accuracy, have Wilson's interval, which holds for few rows too: with 12 of 12 right it is 76
to 100%, where a bootstrap would say 100 to 100%. All other metrics have a bootstrap interval: the rows of a split are
drawn again with replacement, up to a thousand times, and the metric is computed on each draw; the interval holds the
middle 95% of the values. Neither says anything about another seed or other training data. The draws depend only on
the seed, so a resumed run reports the same numbers.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.metrics import row_losses

Array = NDArray[np.float64]
Interval = tuple[float, float]
Intervals = dict[str, Interval]
_MOST_DRAWS, _FEWEST_DRAWS = 1000, 200
_MOST_WORK = 4e9  # multiplications; with more, fewer draws
_DRAWS_AT_ONCE = 50
_TAIL_PERCENT = 2.5
_WILSON_Z = 1.959964  # of the normal distribution, for 95%


def classifier_intervals(scores: Array, truth: NDArray[Any], is_multi: bool, seed: int) -> Intervals:
    """The intervals of a classifier's metrics, by name."""
    rows, labels = scores.shape
    if is_multi:
        predicted, expected = scores > 0, truth > 0.5
    else:
        predicted, expected = (np.arange(labels) == one[:, None] for one in (scores.argmax(1), truth))
    columns: list[NDArray[Any]] = [(predicted & expected), predicted, expected]
    columns += [(predicted == expected).all(1)[:, None], row_losses(scores, truth, is_multi)[:, None]]
    table = np.concatenate(columns, axis=1).astype(np.float32)

    def metrics(sums: Array) -> dict[str, Array]:
        hits, said, true = (sums[:, at * labels : (at + 1) * labels] for at in range(3))
        exact, loss = sums[:, -2] / rows, sums[:, -1] / rows
        f1 = 2 * hits / np.maximum(said + true, 1e-9)
        counted = np.ones_like(true, bool) if is_multi else true > 0  # as the metrics themselves count
        macro = (f1 * counted).sum(1) / np.maximum(counted.sum(1), 1)
        micro = 2 * hits.sum(1) / np.maximum(said.sum(1) + true.sum(1), 1e-9)
        named = {"exact_match": exact} if is_multi else {"accuracy": exact}
        return {**named, "micro_f1": micro, "macro_f1": macro, "loss": loss}

    found = _intervals(table, metrics, seed)
    if not found:
        return {}
    share = _wilson(float(table[:, -2].sum()), rows)
    found["exact_match" if is_multi else "accuracy"] = share
    # Rows that are all right or all wrong leave a bootstrap no spread.
    return {name: share if low == high and name != "loss" else (low, high) for name, (low, high) in found.items()}


def _wilson(hits: float, rows: int) -> Interval:
    """Wilson's score interval of a share of rows."""
    share, squared = hits / rows, _WILSON_Z**2
    middle = (share + squared / (2 * rows)) / (1 + squared / rows)
    half = _WILSON_Z / (1 + squared / rows) * math.sqrt(share * (1 - share) / rows + squared / (4 * rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_intervals(values: Mapping[str, Array], seed: int) -> Intervals:
    """The intervals of metrics that are means over rows, as those of retrieval are over queries."""
    if not values:
        return {}
    table = np.stack(list(values.values()), axis=1).astype(np.float32)
    return _intervals(table, lambda sums: dict(zip(values, (sums / len(table)).T, strict=True)), seed)


def loss_intervals(losses: Array, tokens: Array, seed: int) -> Intervals:
    """The intervals of a language model's loss and perplexity, from the summed loss and the tokens of each unit."""
    table = np.stack((losses, tokens), axis=1).astype(np.float32)

    def metrics(sums: Array) -> dict[str, Array]:
        loss = sums[:, 0] / np.maximum(sums[:, 1], 1)
        return {"loss": loss, "perplexity": np.exp(np.minimum(loss, 50.0))}

    return _intervals(table, metrics, seed)


def _intervals(table: NDArray[np.float32], metrics: Callable[[Array], dict[str, Array]], seed: int) -> Intervals:
    """Intervals of what `metrics` makes of the summed columns of each draw of rows."""
    if len(table) < 2:
        return {}
    sums = np.concatenate([draws @ table for draws in _draws(table.shape, seed)]).astype(np.float64)
    tails = (_TAIL_PERCENT, 100 - _TAIL_PERCENT)
    ends = {name: np.percentile(values, tails) for name, values in metrics(sums).items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _draws(shape: tuple[int, int], seed: int) -> Iterator[NDArray[np.float32]]:
    """How often each row is in each draw, for some draws at a time."""
    rows, columns = shape
    count = int(np.clip(_MOST_WORK / (rows * (columns + 10)), _FEWEST_DRAWS, _MOST_DRAWS))
    rng = np.random.default_rng((seed, rows))
    for first in range(0, count, _DRAWS_AT_ONCE):
        several = min(_DRAWS_AT_ONCE, count - first)
        drawn = rng.integers(0, rows, (several, rows)) + np.arange(several)[:, None] * rows
        yield np.bincount(drawn.ravel(), minlength=several * rows).reshape(several, rows).astype(np.float32)
