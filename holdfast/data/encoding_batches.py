"""Encodes texts in batches on another core while the next rows are read."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_BATCH_TEXTS = 1000
_BATCH_CHARACTERS = 2_000_000


class EncodingBatches:
    """Collects items; `encode` runs on full batches in another thread, `take` gets each batch and its result in order.

    The tokenizer's library leaves Python's lock while it works, so reading and tokenizing share two cores. One batch is
    in work at a time, so memory is bounded by two.
    """

    def __init__(self, encode: Callable[[list[Any]], Any], take: Callable[[list[Any], Any], None]):
        self._encode, self._take = encode, take
        self._items: list[Any] = []
        self._characters = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._working: tuple[list[Any], Future[Any]] | None = None

    def add(self, item: Any, characters: int) -> None:
        """Take one more item with this many characters."""
        self._items.append(item)
        self._characters += characters
        if len(self._items) >= _BATCH_TEXTS or self._characters >= _BATCH_CHARACTERS:
            self._start()

    def end(self) -> None:
        """Encode and hand over what is left."""
        self._start()
        self._collect()
        self._pool.shutdown()

    def _start(self) -> None:
        self._collect()
        if self._items:
            self._working = self._items, self._pool.submit(self._encode, self._items)
        self._items, self._characters = [], 0

    def _collect(self) -> None:
        if self._working:
            items, future = self._working
            self._working = None
            self._take(items, future.result())
