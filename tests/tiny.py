"""Tiny models and data for tests: random weights, a dozen words, seconds to train."""

import json
from pathlib import Path

import numpy as np

from holdfast.core.prepared import Manifest, SplitSize
from holdfast.core.runfolder import SETTINGS, attempt_folder
from holdfast.data.shards import write_manifest, write_tokens

WORDS = 120

SPLITS = {"train": SplitSize(rows=0), "validation": SplitSize(rows=0)}  # nothing in these tests reads the rows


def tiny_bert(folder: Path, hidden_size: int = 32) -> Path:
    """A BERT of two layers with dropout, and a tokenizer of numbered words."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    _tiny_tokenizer(folder)
    return folder


def tiny_llama(folder: Path) -> Path:
    """A Llama of two layers with grouped heads, and the same tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    _tiny_tokenizer(folder)
    return folder


def tiny_chat_model(folder: Path) -> Path:
    """The same Llama, with an end-of-text token, which mlx-lm asks for."""
    tiny_llama(folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token": "w2"}))
    return folder


def tiny_texts(count: int, seed: int = 0) -> tuple[list[list[int]], np.ndarray]:
    """Texts of 3 to 40 tokens whose label depends on their first word."""
    draws = np.random.default_rng(seed)
    texts = [draws.integers(1, WORDS, draws.integers(3, 41)).tolist() for _ in range(count)]
    return texts, np.array([text[0] % 3 for text in texts])


def tiny_prepared(folder: Path, count: int = 96) -> Path:
    """Prepared shards for `classify` with three labels."""
    folder.mkdir(parents=True)
    for split, size in (("train", count), ("validation", 24)):
        texts, labels = tiny_texts(size, seed=size)
        write_tokens(folder, split, texts)
        np.save(folder / f"{split}.labels.npy", labels)
    write_manifest(folder, Manifest(task="classify", labels=("a", "b", "c"), splits=SPLITS))
    return folder


def tiny_attempt(run: Path, model: Path, prepared: Path, number: int = 1, **settings: object) -> Path:
    """An attempt folder with its settings, ready for `python -m holdfast.engine`."""
    attempt = attempt_folder(run, number)
    attempt.mkdir(parents=True)
    given = {
        "task": "classify",
        "model": str(model),
        "prepared": str(prepared),
        "run": str(run),
        "threads": 1,
        "lr": 1e-3,
    }
    (attempt / SETTINGS).write_text(json.dumps(given | {"batch_size": 8, "epochs": 3} | settings))
    return attempt


def tiny_instructions(folder: Path, count: int = 96) -> Path:
    """Prepared shards for `causal`: the last third of each text is the answer."""
    folder.mkdir(parents=True)
    for split, size in (("train", count), ("validation", 24)):
        texts, _ = tiny_texts(size, seed=size)
        write_tokens(folder, split, texts)
        learn = [np.arange(len(text)) >= 2 * len(text) // 3 for text in texts]
        np.save(folder / f"{split}.learn.npy", np.concatenate(learn).astype(np.uint8))
    write_manifest(folder, Manifest(task="causal", splits=SPLITS))
    return folder


def _tiny_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(WORDS - 1)} | {"[UNK]": WORDS - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", unk_token="[UNK]").save_pretrained(folder)


def tiny_questions(folder: Path, count: int = 96, near_misses: bool = True) -> Path:
    """Prepared shards for `two-tower`: a passage repeats words of its query; passages of one article lie together."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(count)
    corpus, _ = tiny_texts(count + 24, seed=count)
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
    write_manifest(folder, Manifest(task="two-tower", form="text", splits=SPLITS, max_length=64))
    return folder


def tiny_vectors(folder: Path, count: int = 96) -> Path:
    """Prepared shards for `two-tower` over vectors: a query's vector is its passage's, turned and blurred."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(count)
    corpus = draws.normal(size=(count + 24, 12)).astype(np.float32)
    turn = draws.normal(size=(12, 12)).astype(np.float32)
    np.save(folder / "corpus.vectors.npy", corpus)
    for split, answers in (("train", np.arange(count)), ("validation", np.arange(count, count + 24))):
        queries = corpus[answers] @ turn + 0.1 * draws.normal(size=(len(answers), 12))
        np.save(folder / f"{split}.vectors.npy", queries.astype(np.float32))
        qrels = np.stack([np.arange(len(answers)), answers, np.ones(len(answers), dtype=np.int64)], 1)
        np.save(folder / f"{split}.qrels.npy", qrels)
    write_manifest(folder, Manifest(task="two-tower", form="vectors", splits=SPLITS))
    return folder
