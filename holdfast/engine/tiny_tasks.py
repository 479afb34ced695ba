"""Tiny models and data for each task: random weights, a hundred words, a step in milliseconds.

For `holdfast selftest`, which compares devices on them, and for tests. `python -m holdfast.engine.tiny_tasks FOLDER`
makes a model and prepared data for each task, with texts of many lengths and without dropout.
"""

import sys
from pathlib import Path

import numpy as np

from holdfast.core.prepared import Manifest, SplitSize
from holdfast.data.shards import write_manifest, write_tokens

WORDS = 120
SPLITS = {"train": SplitSize(rows=0), "validation": SplitSize(rows=0)}  # nothing that trains on these reads the rows
LONGEST = 40  # tokens, unless said otherwise
_SELFTEST_LONGEST, _SELFTEST_ROWS, _SELFTEST_SIZE = 120, 320, 64


def main(folder: Path) -> None:
    """Make the models and data of the self-test."""
    longest, rows = _SELFTEST_LONGEST, _SELFTEST_ROWS
    tiny_bert(folder / "bert", _SELFTEST_SIZE, positions=2 * longest, dropout=0.0)
    tiny_llama(folder / "llama", _SELFTEST_SIZE, positions=2 * longest)
    tiny_prepared(folder / "classify", rows, longest)
    tiny_instructions(folder / "causal", rows, longest)
    tiny_questions(folder / "two-tower", rows, longest=longest)


def tiny_bert(folder: Path, hidden_size: int = 32, positions: int = 64, dropout: float = 0.1) -> Path:
    """A BERT of two layers, and a tokenizer of numbered words."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    BertModel(config).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def tiny_llama(folder: Path, hidden_size: int = 32, positions: int = 64) -> Path:
    """A Llama of two layers with grouped heads, and the same tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def tiny_prepared(folder: Path, count: int = 96, longest: int = LONGEST) -> Path:
    """Prepared shards for `classify` with three labels."""
    folder.mkdir(parents=True)
    for split, size in (("train", count), ("validation", 24)):
        texts, labels = tiny_texts(size, size, longest)
        write_tokens(folder, split, texts)
        np.save(folder / f"{split}.labels.npy", labels)
    write_manifest(folder, Manifest(task="classify", labels=("a", "b", "c"), splits=SPLITS))
    return folder


def tiny_instructions(folder: Path, count: int = 96, longest: int = LONGEST) -> Path:
    """Prepared shards for `causal`: the last third of each text is the answer."""
    folder.mkdir(parents=True)
    for split, size in (("train", count), ("validation", 24)):
        texts, _ = tiny_texts(size, size, longest)
        write_tokens(folder, split, texts)
        learn = [np.arange(len(text)) >= 2 * len(text) // 3 for text in texts]
        np.save(folder / f"{split}.learn.npy", np.concatenate(learn).astype(np.uint8))
    write_manifest(folder, Manifest(task="causal", splits=SPLITS))
    return folder


def tiny_questions(folder: Path, count: int = 96, near_misses: bool = True, longest: int = LONGEST) -> Path:
    """Prepared shards for `two-tower`: a passage repeats words of its query; passages of one article lie together."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(count)
    corpus, _ = tiny_texts(count + 24, count, longest)
    corpus[5] = list(corpus[4])  # a copy
    write_tokens(folder, "corpus", corpus)
    np.save(folder / "corpus.groups.npy", np.arange(len(corpus)) // 3)
    for split, answers in (("train", np.arange(count)), ("validation", np.arange(count, count + 24))):
        queries = [draws.permutation(corpus[at])[:6].tolist() for at in answers]
        write_tokens(folder, split, queries)
        qrels = np.stack([np.arange(len(answers)), answers, np.ones(len(answers), dtype=np.int64)], 1)
        np.save(folder / f"{split}.qrels.npy", qrels)
    if near_misses:
        np.save(folder / "train.negatives.npy", np.array([[at, (at + 7) % count] for at in range(0, count, 2)]))
    write_manifest(folder, Manifest(task="two-tower", form="text", splits=SPLITS, max_length=max(64, longest)))
    return folder


def tiny_texts(count: int, seed: int = 0, longest: int = LONGEST) -> tuple[list[list[int]], np.ndarray]:
    """Texts of 3 tokens or more whose label depends on their first word."""
    draws = np.random.default_rng(seed)
    texts = [draws.integers(1, WORDS, draws.integers(3, longest + 1)).tolist() for _ in range(count)]
    return texts, np.array([text[0] % 3 for text in texts])


def tiny_tokenizer(folder: Path) -> None:
    """A tokenizer of numbered words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(WORDS - 1)} | {"[UNK]": WORDS - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", unk_token="[UNK]").save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
