"""Small files and a small tokenizer for the tests of holdfast.data."""

import json
import random
from pathlib import Path

import pytest

WORDS = (
    "film", "plot", "actor", "scene", "music", "light", "sound", "story", "good", "bad", "slow", "bright", "dull",
    "short", "long", "happy", "sad", "loud", "quiet", "warm", "cold", "river", "stone", "tree", "cloud", "wind", "rain",
    "snow", "sun", "moon", "star", "bird", "fish", "horse", "dog", "cat", "mouse", "house", "road", "bridge", "tower",
    "door",
)  # fmt: skip


def sentences(count: int, seed: int = 0, words: int = 8) -> list[str]:
    """Different short texts."""
    draws = random.Random(seed)
    return [" ".join(draws.choices(WORDS, k=words)) + f" {number}" for number in range(count)]


def labelled(count: int, labels: tuple[str, ...] = ("neg", "pos"), seed: int = 0) -> list[tuple[str, str]]:
    """Texts with a label each, all labels alike often."""
    return [(text, labels[at % len(labels)]) for at, text in enumerate(sentences(count, seed))]


def csv_text(rows, header: str = "text,label", mark: str = ",") -> str:
    """Rows as they stand in a file."""
    lines = [mark.join(map(str, row)) for row in rows]
    return "\n".join(([header] if header else []) + lines) + "\n"


@pytest.fixture
def write(tmp_path):
    """Write a file with text or bytes, or rows as CSV; gives its path."""

    def write(name: str, content) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content), encoding="utf-8")
        else:
            path.write_text(csv_text(content), encoding="utf-8", newline="")
        return path

    return write


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    """A folder with a BERT tokenizer of a few words and a limit of 32 tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("bert")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *"0123456789", *(f"##{digit}" for digit in "0123456789"), "#"]
    pieces += [":", "instruction", "response"]
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.enable_truncation(16)  # as many folders have it; it must not reach us
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 32}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 32}))
    return folder


CHAT = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}<|start|>system\nBe kind.<|end|>\n"
    "{% endif %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory) -> Path:
    """A folder with a byte-level tokenizer whose pad token is its end token, and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("chat")
    vocabulary = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|start|>", "<|end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 512}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "pad_token": "<|end|>", "bos_token": "<|start|>", "chat_template": CHAT})
    )
    return folder
