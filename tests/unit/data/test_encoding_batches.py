"""Batches are bounded, encoded in another thread and handed over in order."""

import threading

import pytest

from holdfast.data import encoding_batches
from holdfast.data.encoding_batches import EncodingBatches


def test_batches_are_bounded_and_in_order(monkeypatch):
    monkeypatch.setattr(encoding_batches, "_BATCH_TEXTS", 3)
    monkeypatch.setattr(encoding_batches, "_BATCH_CHARACTERS", 10)
    taken, threads = [], set()

    def encode(texts):
        threads.add(threading.get_ident())
        return [text.upper() for text in texts]

    batches = EncodingBatches(encode, lambda texts, found: taken.append((texts, found)))
    for text in ("a", "b", "c", "d" * 12, "e"):
        batches.add(text, len(text))
    batches.end()
    assert taken == [(["a", "b", "c"], ["A", "B", "C"]), (["d" * 12], ["D" * 12]), (["e"], ["E"])]
    assert threads.isdisjoint({threading.get_ident()})


def test_an_error_of_the_tokenizer_is_raised():
    batches = EncodingBatches(lambda texts: 1 / 0, lambda texts, found: None)
    batches.add("a", 1)
    with pytest.raises(ZeroDivisionError):
        batches.end()
