"""Writes a small prepared folder with the longest examples of a large one, to try in seconds what a run must survive.

Reads: prepared/. Writes: a folder of the same kind. The arrays are described in `shards`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from holdfast.data.shards import (
    Manifest,
    TokenArray,
    has_array,
    open_array,
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
    texts = open_tokens(prepared, split)
    write_tokens(folder, split, [texts[int(at)].tolist() for at in rows])
    if has_array(prepared, f"{split}.labels"):
        np.save(folder / f"{split}.labels.npy", np.asarray(open_array(prepared, f"{split}.labels"))[rows])
    if has_array(prepared, f"{split}.learn"):
        learn: NDArray[Any] = open_array(prepared, f"{split}.learn")
        parts = [learn[texts.starts[at] : texts.starts[at + 1]] for at in rows]
        np.save(folder / f"{split}.learn.npy", np.concatenate(parts) if parts else learn[:0])
    if has_array(prepared, f"{split}.windows"):  # each text is its own row
        np.save(folder / f"{split}.windows.npy", np.arange(len(rows) + 1))
    if has_array(prepared, f"{split}.rows"):
        places = np.asarray(open_array(prepared, f"{split}.rows"))
        np.save(folder / f"{split}.rows.npy", places[np.minimum(rows, len(places) - 1)])


def _write_pairs(prepared: Path, folder: Path, manifest: Manifest, count: int) -> None:
    """The judgments with the longest texts, their queries, and their passages as the whole corpus."""
    is_text = manifest.form == "text"
    chosen: dict[str, NDArray[Any]] = {}
    for split in manifest.splits:
        qrels = np.asarray(open_array(prepared, f"{split}.qrels"))
        cost = _lengths(prepared, split, is_text)[qrels[:, 0]] + _lengths(prepared, "corpus", is_text)[qrels[:, 1]]
        chosen[split] = qrels[np.argsort(-cost, kind="stable")[:count]]
    passages = np.unique(np.concatenate([qrels[:, 1] for qrels in chosen.values()]))
    _write_items(prepared, folder, "corpus", passages, is_text)
    if has_array(prepared, "corpus.groups"):
        np.save(folder / "corpus.groups.npy", np.asarray(open_array(prepared, "corpus.groups"))[passages])
    for split, qrels in chosen.items():
        queries = np.unique(qrels[:, 0])
        _write_items(prepared, folder, split, queries, is_text)
        numbered = np.stack(
            [np.searchsorted(queries, qrels[:, 0]), np.searchsorted(passages, qrels[:, 1]), qrels[:, 2]], 1
        )
        np.save(folder / f"{split}.qrels.npy", numbered)
        if has_array(prepared, f"{split}.rows"):
            np.save(folder / f"{split}.rows.npy", np.asarray(open_array(prepared, f"{split}.rows"))[queries])


def _write_items(prepared: Path, folder: Path, name: str, rows: Rows, is_text: bool) -> None:
    if is_text:
        texts = open_tokens(prepared, name)
        write_tokens(folder, name, [texts[int(at)].tolist() for at in rows])
    else:
        np.save(folder / f"{name}.vectors.npy", np.asarray(open_array(prepared, f"{name}.vectors"))[rows])


def _lengths(prepared: Path, name: str, is_text: bool) -> NDArray[Any]:
    if is_text:
        return open_tokens(prepared, name).lengths
    return np.ones(len(open_array(prepared, f"{name}.vectors")), dtype=np.int64)
