"""Tokenizes BERT-style texts word by word, each different word once.

A BERT tokenizer treats what stands between spaces apart from everything else, so the tokens of a text are those of its
words, one after the other. Looking words up is many times faster than working each out again: texts repeat their words.
Measured in processor time: 27,000 medical texts 5.0 s by the library alone and 2.7 s this way, 20,000 texts of 12,000
words 1.9 s and 0.5 s; the more texts, the fewer new words.
"""

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

_MOST_WORDS = 200_000
_LONGEST_WORD = 40  # longer ones hardly come again


def can_go_by_word(tokenizer: Any) -> bool:
    """Say whether the tokenizer is of the kind for which words are apart from each other."""
    form = json.loads(tokenizer.to_str())
    normalizer, splitter = form.get("normalizer") or {}, form.get("pre_tokenizer") or {}
    if normalizer.get("type") != "BertNormalizer" or not normalizer.get("clean_text", True):
        return False
    if splitter.get("type") != "BertPreTokenizer" or (form.get("model") or {}).get("type") != "WordPiece":
        return False
    return not any(
        token.get("lstrip") or token.get("rstrip") or token.get("single_word") or " " in token.get("content", "")
        for token in form.get("added_tokens") or ()
    )


class WordCache:
    """The tokens of words that were seen before."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._ids: dict[str, list[int]] = {"": []}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of some texts, without marks around them."""
        # Only what is a space to every BERT tokenizer parts words; rarer ones stay inside and go to the library.
        words = [text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ") for text in texts]
        if len(self._ids) > _MOST_WORDS:
            self._ids = {"": []}
        known = self._ids
        new = list(set(chain.from_iterable(words)).difference(known))
        passing: list[str] = []
        if new:
            for word, encoding in zip(
                new, self._tokenizer.encode_batch_fast(new, add_special_tokens=False), strict=True
            ):
                known[word] = encoding.ids
                if len(word) > _LONGEST_WORD:
                    passing.append(word)
        found = [list(chain.from_iterable(map(known.__getitem__, one))) for one in words]
        for word in passing:
            del known[word]
        return found
