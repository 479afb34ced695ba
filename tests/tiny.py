"""Tiny attempts for tests, with the tiny models and data of `holdfast.engine.tiny_tasks`."""

import json
from pathlib import Path

import numpy as np

from holdfast.core.prepared import Manifest
from holdfast.core.runfolder import SETTINGS, attempt_folder
from holdfast.data.shards import write_manifest
from holdfast.engine.tiny_tasks import (
    SPLITS,
    WORDS,
    tiny_bert,
    tiny_instructions,
    tiny_llama,
    tiny_prepared,
    tiny_questions,
    tiny_texts,
)
from holdfast.engine.tiny_tasks import tiny_tokenizer as _tiny_tokenizer

__all__ = [
    "SPLITS",
    "WORDS",
    "_tiny_tokenizer",
    "tiny_attempt",
    "tiny_bert",
    "tiny_chat_model",
    "tiny_instructions",
    "tiny_llama",
    "tiny_prepared",
    "tiny_questions",
    "tiny_texts",
    "tiny_vectors",
]


def tiny_chat_model(folder: Path) -> Path:
    """The same Llama, with an end-of-text token, which mlx-lm asks for."""
    tiny_llama(folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token": "w2"}))
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
