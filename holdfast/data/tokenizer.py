"""Turns texts into token ids with the `tokenizers` library alone: no torch, no transformers in this process."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

from holdfast.core.errors import RequestError, install

TOKENIZER = "tokenizer.json"
_NO_LIMIT = 1_000_000  # tokenizers without a limit say 10**30
# Families whose position numbers start after the padding token's, so that fewer are left for text.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "xlm-roberta-xl", "data2vec-text")


_MOST_WORDS = 200_000


_LONGEST_WORD = 40  # longer ones are rarely repeated


def can_go_by_word(tokenizer: Any) -> bool:
    """Whether the tokenizer treats words independently of each other."""
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
    """Tokenizes BERT-style texts word by word, each different word once.

    A BERT tokenizer treats the words between spaces independently, so the tokens of a text are those of its words, one
    after the other. Looking words up is many times faster than tokenizing each again, because texts repeat their words.
    Measured in processor time: 27,000 medical texts 5.0 s with the library alone and 2.7 s this way, 20,000 texts of
    12,000 different words 1.9 s and 0.5 s; the more texts, the fewer new words.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._ids: dict[str, list[int]] = {"": []}
        self._lock = Lock()  # queries and passages are encoded in threads of their own

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of some texts, without special tokens."""
        with self._lock:
            return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        # Only what every BERT tokenizer treats as a space separates words; rarer spaces are left to the library.
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


@dataclass(frozen=True)
class ModelTokenizer:
    """The tokenizer of a model folder, with the special tokens it puts around a text."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / TOKENIZER).is_file():
            raise RequestError(
                f"the folder {self.folder} has no {TOKENIZER}",
                found=_seen_in(self.folder),
                try_next=(
                    "use a model with a fast tokenizer",
                    "create one from older files: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
                ),
                setting="model",
            )

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, with its own padding and truncation switched off."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise RequestError(
                "tokenizing needs an extra that is not installed", found=str(error), try_next=(install("train"),)
            ) from error
        try:
            tokenizer = Tokenizer.from_file(str(self.folder / TOKENIZER))
        except Exception as error:  # the library raises plain Exception for a damaged file
            raise RequestError(f"cannot read {self.folder / TOKENIZER}", found=str(error)[:200]) from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @cached_property
    def _words(self) -> WordCache | None:
        return WordCache(self.tokenizer) if can_go_by_word(self.tokenizer) else None

    @cached_property
    def marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens put before and after a text, such as [CLS] and [SEP]."""
        bare = self.tokenizer.encode("a", add_special_tokens=False).ids
        full = self.tokenizer.encode("a").ids
        before = next((at for at in range(len(full) - len(bare) + 1) if full[at : at + len(bare)] == bare), len(full))
        return tuple(full[:before]), tuple(full[before + len(bare) :])

    @cached_property
    def limit(self) -> int | None:
        """The model's maximum number of tokens, special tokens included; None when its files do not say."""
        config, own = self.config, self.own_config
        limits = [own.get("model_max_length"), _positions(config)]
        known = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < _NO_LIMIT]
        return min(known, default=None)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The model's config.json."""
        return _read_json(self.folder / "config.json")

    @cached_property
    def own_config(self) -> Mapping[str, Any]:
        """The tokenizer's tokenizer_config.json."""
        return _read_json(self.folder / "tokenizer_config.json")

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the tokenizer's file."""
        return hashlib.sha256((self.folder / TOKENIZER).read_bytes()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of some texts, without special tokens."""
        if self._words:
            return self._words.encode(texts)
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_places(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """The token ids of some texts without special tokens, and the character at which each token starts."""
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, [start for start, _ in encoding.offsets]) for encoding in encodings]

    def id_of(self, token: str) -> tuple[int, ...]:
        """The id of a token as a tuple of one; empty if there is no such token."""
        found = self.tokenizer.token_to_id(token) if token else None
        return () if found is None else (found,)

    @cached_property
    def own_chat_template(self) -> str:
        """The chat template among the model's files; empty if there is none."""
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        template = self.own_config.get("chat_template") or _read_json(self.folder / "chat_template.json").get(
            "chat_template"
        )
        if isinstance(template, list):  # several by name
            by_name = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
            template = by_name.get("default")
        return template if isinstance(template, str) else ""

    def special(self, name: str) -> str:
        """A special token as text, such as that of `eos_token`; empty if there is none."""
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            token = _read_json(self.folder / file).get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if text:
                return str(text)
        return ""


def _positions(config: Mapping[str, Any]) -> int | None:
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    if not isinstance(positions, int):
        return None
    if config.get("model_type") in _OFFSET_POSITIONS:
        positions -= int(config.get("pad_token_id") or 0) + 1
    return positions


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _seen_in(folder: Path) -> str:
    if not folder.is_dir():
        return "the folder does not exist"
    return ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "an empty folder"
