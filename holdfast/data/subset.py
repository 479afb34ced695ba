"""Writes a small prepared folder with the longest examples of a large one, to try in seconds what a run must survive.

Reads: prepared/. Writes: a folder of the same kind. The arrays are described in `shards`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from holdfast.core.prepared import Manifest
from holdfast.data.shards import (
    TokenArray,
    has_array,
    open_array,
    open_lengths,
    open_tokens,
    require_manifest,
    write_manifest,
    write_tokens,
)

Rows = NDArray[np.int64]


def write_longest(prepared: Path, folder: Path, count: int) -> Path:
    """Write the `count` longest examples of each split."""
    manifest = require_manifest(prepared)
    folder.mkdir(parents=True, exist_ok=True)
    if manifest.task == "two-tower":
        _write_pairs(prepared, folder, manifest, count)
    else:
        for split in manifest.splits:
            _write_split(prepared, folder, split, longest(open_tokens(prepared, split), count))
    files = {path.name: path.stat().st_size for path in sorted(folder.glob("*.npy"))}
    fingerprint = f"{manifest.fingerprint}-longest-{count}"
    write_manifest(folder, structs.replace(manifest, fingerprint=fingerprint, files=files))
    return folder


def longest(texts: TokenArray, count: int) -> Rows:
    """The numbers of the longest texts, in their order."""
    return np.sort(np.argsort(-texts.lengths, kind="stable")[:count])


def _write_split(prepared: Path, folder: Path, split: str, rows: Rows) -> None:
    _copy_texts(prepared, folder, split, rows)
    _copy_rows(prepared, folder, f"{split}.labels", rows)
    if has_array(prepared, f"{split}.learn"):
        learn: NDArray[Any] = open_array(prepared, f"{split}.learn")
        starts = open_tokens(prepared, split).starts
        parts = [learn[starts[at] : starts[at + 1]] for at in rows]
        np.save(folder / f"{split}.learn.npy", np.concatenate(parts) if parts else learn[:0])
    if has_array(prepared, f"{split}.windows"):  # each text is its own row
        np.save(folder / f"{split}.windows.npy", np.arange(len(rows) + 1))
    if has_array(prepared, f"{split}.rows"):
        _copy_rows(prepared, folder, f"{split}.rows", np.minimum(rows, len(open_array(prepared, f"{split}.rows")) - 1))


def _write_pairs(prepared: Path, folder: Path, manifest: Manifest, count: int) -> None:
    """The judgments with the longest texts, their queries, and their passages as the whole corpus."""
    chosen: dict[str, NDArray[Any]] = {}
    corpus = open_lengths(prepared, "corpus")
    for split in manifest.splits:
        qrels = np.asarray(open_array(prepared, f"{split}.qrels"))
        cost = open_lengths(prepared, split)[qrels[:, 0]] + corpus[qrels[:, 1]]
        chosen[split] = qrels[np.argsort(-cost, kind="stable")[:count]]
    passages = np.unique(np.concatenate([qrels[:, 1] for qrels in chosen.values()]))
    _copy_texts(prepared, folder, "corpus", passages)
    _copy_rows(prepared, folder, "corpus.groups", passages)
    for split, qrels in chosen.items():
        queries = np.unique(qrels[:, 0])
        _copy_texts(prepared, folder, split, queries)
        _copy_rows(prepared, folder, f"{split}.rows", queries)
        places = np.searchsorted(queries, qrels[:, 0]), np.searchsorted(passages, qrels[:, 1]), qrels[:, 2]
        np.save(folder / f"{split}.qrels.npy", np.stack(places, 1))


def _copy_texts(prepared: Path, folder: Path, name: str, rows: Rows) -> None:
    if has_array(prepared, f"{name}.tokens"):
        texts = open_tokens(prepared, name)
        write_tokens(folder, name, [texts[int(at)].tolist() for at in rows])
    _copy_rows(prepared, folder, f"{name}.vectors", rows)


def _copy_rows(prepared: Path, folder: Path, name: str, rows: Rows) -> None:
    if has_array(prepared, name):
        np.save(folder / f"{name}.npy", np.asarray(open_array(prepared, name))[rows])
