"""Texts as the token arrays that evaluation works on."""

from collections.abc import Sequence

import numpy as np

from holdfast.data.shards import TokenArray
from holdfast.data.tokenizer import ModelTokenizer


def token_array(tokens: ModelTokenizer, texts: Sequence[str], length: int) -> TokenArray:
    """Texts with the marks around them, each cut to a length."""
    before, after = tokens.marks
    room = length - len(before) - len(after)
    return as_array([[*before, *body[:room], *after] for body in tokens.encode(texts)])


def as_array(pieces: Sequence[Sequence[int]]) -> TokenArray:
    """Token ids one after the other."""
    ends = np.cumsum([0, *map(len, pieces)])
    return TokenArray(np.concatenate([np.asarray(piece, dtype=np.int32) for piece in pieces]), ends)
