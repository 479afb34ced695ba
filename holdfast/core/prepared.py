"""The manifest of a folder of prepared data, which is written last. The arrays are described in `data.shards`."""

from typing import Any

import msgspec

from holdfast.core.facts import BadRow
from holdfast.core.plan import Choice

FORMAT = 1


class SplitSize(msgspec.Struct, frozen=True):
    """How large a split is."""

    rows: int
    tokens: int = 0
    learned_tokens: int = 0  # causal: those that the loss counts


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a prepared folder."""

    task: str
    splits: dict[str, SplitSize]
    format: int = FORMAT
    fingerprint: str = ""  # of data, tokenizer and settings together
    files: dict[str, int] = {}  # every array and its bytes; a folder with other sizes is incomplete
    max_length: int = 0  # maximum number of tokens in a text, special tokens included; 0 for vectors
    tokenizer_sha256: str = ""
    choices: dict[str, Choice[Any]] = {}  # what was decided while preparing, and why
    bad_rows: tuple[BadRow, ...] = ()  # the first of those left out while preparing
    bad_row_count: int = 0
    overlong_rows: int = 0  # texts over the maximum length
    labels: tuple[str, ...] = ()  # classify: in the order of their numbers
    multi_label: bool = False
    overlong: str = ""  # classify: "truncate" | "window"
    overlong_lost_tokens: int = 0
    chat_template: str = ""  # causal: renders messages as they were rendered here
    form: str = ""  # two-tower: "text" | "vectors"
    corpus_tokens: int = 0
    prefixes: dict[str, str] = {}  # two-tower: "query" and "passage", what is put before each text
