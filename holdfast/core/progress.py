"""Reads what progress bars said last: where a run stood when it stopped."""

import re
from collections.abc import Iterable

from holdfast.core.evidence import Progress
from holdfast.core.loglines import Line

_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_COUNT = r"(?P<done>\d+(?:\.\d+)?)(?P<unit>[kKMGT]?)i?B?/(?P<total>\d+(?:\.\d+)?|\?)(?P<total_unit>[kKMGT]?)i?B?"
_BARS = (
    # Epoch 1:  45%|████▌     | 45/100 [00:12<00:15,  3.61it/s]      (tqdm)
    re.compile(rf"(?P<text>[^|%]*?)[: ]*\d{{1,3}}%\|[^|]*\|\s*{_COUNT}"),
    # Map: 100 examples [00:01, 95 examples/s] has no total; 45/100 [00:12<00:15 has lost its bar
    re.compile(rf"(?P<text>[^|\[]*?)[: ]*{_COUNT} \[\d+:\d+(?::\d+)?<"),
    # 45/100 [=======>......] - ETA: 3s      45/100 ━━━━━━━━━━ 3s      (Keras)
    re.compile(rf"(?P<text>)\s*{_COUNT} (?:\[[=>.]+\]|━+)"),
    # Training ━━━━━━━╸━━━ 45/100 0:00:12      (rich, Lightning)
    re.compile(rf"(?P<text>[^━╸]*?)[━╸╺]+\s+{_COUNT}"),
)
_HINT = re.compile(r"%\||\d/[\d?]|━")


def read_progress(lines: Iterable[Line]) -> tuple[Progress, ...]:
    """Give the last state of each progress bar, the one drawn last at the end."""
    bars: dict[tuple[str, float | None], Progress] = {}
    for number, line in lines:
        if not _HINT.search(line):
            continue
        for shape in _BARS:
            if match := shape.match(line[:400]):
                done = float(match["done"]) * _UNITS[match["unit"]]
                total = None if match["total"] == "?" else float(match["total"]) * _UNITS[match["total_unit"]]
                bar = Progress(match["text"].strip(), done, total, number)
                bars.pop((bar.text, total), None)
                bars[bar.text, total] = bar
                break
    return tuple(bars.values())
