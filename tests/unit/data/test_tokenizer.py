"""The tokens are those of the library, however they are computed."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import RequestError
from holdfast.data.tokenizer import ModelTokenizer, WordCache, can_go_by_word
from tests.unit.data.conftest import WORDS


def test_marks_and_limit_come_from_the_models_files(bert_folder):
    tokens = ModelTokenizer(bert_folder)
    assert (tokens.marks, tokens.limit) == (((2,), (3,)), 32)


def test_the_files_own_cutting_and_padding_are_off(bert_folder):
    tokens = ModelTokenizer(bert_folder)
    assert len(tokens.encode(["film " * 40])[0]) == 40
    assert len(tokens.encode(["film"])[0]) == 1


def test_positions_that_start_after_the_padding_token(bert_folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((bert_folder / "tokenizer.json").read_bytes())
    config = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert ModelTokenizer(tmp_path).limit == 512


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"has no tokenizer.json"):
        ModelTokenizer(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RequestError, match=r"tokenizer\.json"):
        ModelTokenizer(tmp_path).encode(["film"])


def test_only_bert_tokenizers_go_word_by_word(bert_folder, chat_folder):
    assert can_go_by_word(ModelTokenizer(bert_folder).tokenizer)
    assert not can_go_by_word(ModelTokenizer(chat_folder).tokenizer)


_PIECES = st.one_of(
    st.sampled_from(
        [*WORDS, *" \t\n\r", "\x0b", "\x1c", "\x85", "\u00a0", "\u2003", "\u3000", "\u200b", "\u0301", "[SEP]"]
    ),
    st.text(max_size=4),
)


@settings(deadline=None)
@given(st.lists(st.lists(_PIECES, max_size=12).map("".join), max_size=6))
def test_word_by_word_gives_the_same_tokens(bert_folder, texts):
    tokenizer = ModelTokenizer(bert_folder).tokenizer
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    expected = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    cache = WordCache(tokenizer)
    assert cache.encode(texts) == expected
    assert cache.encode(texts) == expected  # the second time from memory


def test_the_cache_stays_small(bert_folder, monkeypatch):
    monkeypatch.setattr("holdfast.data.tokenizer._MOST_WORDS", 5)
    cache = WordCache(ModelTokenizer(bert_folder).tokenizer)
    for start in range(0, 40, 4):
        cache.encode([" ".join(WORDS[start : start + 4]), "x" * 50])
    assert len(cache._ids) <= 10


class _Counting:
    """A tokenizer that notes how many threads are in it at once."""

    def __init__(self):
        self.inside, self.most = 0, 0

    def encode_batch_fast(self, words, add_special_tokens):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.002)
        self.inside -= 1
        return [SimpleNamespace(ids=[len(word)]) for word in words]


def test_threads_take_turns_in_the_cache():
    counting = _Counting()
    cache = WordCache(counting)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda at: cache.encode([f"word{at} {'x' * (41 + at)}"]), range(40)))
    assert found == [[[len(f"word{at}"), 41 + at]] for at in range(40)]
    assert counting.most == 1
