"""Prepared data: flat memory-mapped arrays that the engine slices, and a manifest written last.

A token array NAME is two files: `NAME.tokens.npy` (int32), the tokens of all texts one after another with their
special tokens in place, and `NAME.starts.npy` (int64), where each text starts, one more than there are texts. Reading a
batch is slicing; nothing is decoded, copied or passed between processes. Every folder has a `manifest.json`,
see `core.prepared`.

classify   A split is the token array SPLIT and `SPLIT.labels.npy`: int64 [texts], or float32 [texts, labels] of 0 and 1
           where `multi_label` is true. With `overlong` "window" a long text is several texts of the token array, each
           with its labels, and `SPLIT.windows.npy` (int64, rows + 1) says that row i is the texts from [i] to [i + 1],
           whose scores are to be averaged.
causal     A split is the token array SPLIT and `SPLIT.learn.npy` (uint8, one per token): 1 where the token is learned,
           0 where it is only read. Only these flags decide the loss, because a pad token may be an end token too. The
           prompt is what comes before the first learned token.
two-tower  `corpus` is the token array of the passages of all splits, each once; SPLIT is that of the split's queries.
           With `form` "vectors" they are `corpus.vectors.npy` and `SPLIT.vectors.npy` instead (float32 [rows, size]).
           `SPLIT.qrels.npy` (int64 [judgments, 3]) has query, passage and a score of 1 or more; each judgment of
           "train" is an example, and all count in an evaluation. `train.negatives.npy` (int64 [near-misses, 2]), if
           there are any, has a query and a passage known not to answer it. `corpus.groups.npy` (int64, -1 for none),
           if there are any, numbers the articles of the passages. Where the passages are their own queries, as with two
           texts of one article, the corpus has the text of each query too.
all        `SPLIT.rows.npy` (int64) is the row in its file of each row (two-tower: of each query), to show it again.
           Texts are kept for display too, because tokens may lose letters: `NAME.texts.npy` (uint8, UTF-8) and
           `NAME.text_starts.npy` (int64), for the corpus and every split but "train"; not for causal.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError
from holdfast.core.prepared import FORMAT, Manifest
from holdfast.core.runfolder import MANIFEST

LONGEST_SHOWN = 8000  # characters of a text that are kept for display
_BUFFERED_TOKENS = 1 << 18
_BUFFERED_BYTES = 1 << 20
_COPIED_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenArray:
    """Texts as token ids, one after the other."""

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]  # one more than there are texts

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self.starts)

    def __getitem__(self, at: int) -> NDArray[np.int32]:
        return self.tokens[self.starts[at] : self.starts[at + 1]]


def open_tokens(folder: Path, name: str) -> TokenArray:
    """Open a token array without reading it into memory."""
    return TokenArray(
        np.load(folder / f"{name}.tokens.npy", mmap_mode="r"), np.load(folder / f"{name}.starts.npy", mmap_mode="r")
    )


class Texts:
    """Texts as they are in the file."""

    def __init__(self, folder: Path, name: str):
        self._bytes = np.load(folder / f"{name}.texts.npy", mmap_mode="r")
        self._starts = np.load(folder / f"{name}.text_starts.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, at: int) -> str:
        return bytes(self._bytes[self._starts[at] : self._starts[at + 1]]).decode("utf-8", "replace")


def open_texts(folder: Path, name: str) -> Texts | None:
    """The texts of a split or of the corpus; None where they are not kept."""
    return Texts(folder, name) if has_array(folder, f"{name}.texts") else None


def open_array(folder: Path, name: str) -> NDArray[np.generic]:
    """Open one plain array, such as labels."""
    array: NDArray[np.generic] = np.load(folder / f"{name}.npy", mmap_mode="r")
    return array


def open_lengths(folder: Path, name: str) -> NDArray[np.int64]:
    """Tokens of each text; 1 for each vector."""
    if has_array(folder, f"{name}.tokens"):
        return open_tokens(folder, name).lengths
    return np.ones(len(open_array(folder, f"{name}.vectors")), dtype=np.int64)


def has_array(folder: Path, name: str) -> bool:
    """Whether an optional array exists."""
    return (folder / f"{name}.npy").is_file()


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a prepared folder; None when the folder is incomplete or has another format."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        is_whole = all((folder / name).stat().st_size == size for name, size in manifest.files.items())
    except (OSError, msgspec.MsgspecError):
        return None
    return manifest if is_whole and manifest.format == FORMAT else None


def require_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder; an error if the folder is incomplete."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise RequestError(
            f"the prepared data in {folder} is incomplete",
            found="its manifest is missing, from another version, or does not match the size of a file",
            try_next=("start the run again, which prepares the data again",),
        )
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the folder complete: it must come after the arrays."""
    write_artifact(folder, MANIFEST, manifest)


class ArrayWriter:
    """Appends to one .npy file, and writes its length into the header at the end."""

    def __init__(self, path: Path, dtype: type[np.generic], width: int | None = None):
        self._dtype = np.dtype(dtype)
        self._width = width
        self._count = 0
        self._file = path.open("wb")
        self._write_header()
        self._header_bytes = self._file.tell()

    def add(self, values: NDArray[Any]) -> None:
        """Append rows."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._count += len(values)

    def close(self) -> int:
        """Finish the file; returns the number of rows."""
        self._file.seek(0)
        self._write_header()
        # numpy pads the header so that the first dimension may grow in place.
        assert self._file.tell() == self._header_bytes
        self._file.close()
        return self._count

    def _write_header(self) -> None:
        shape = (self._count,) if self._width is None else (self._count, self._width)
        header = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, header)


class TokenWriter:
    """Appends texts to a token array, optionally with a flag for each token."""

    def __init__(self, folder: Path, name: str, *, with_flags: bool = False):
        self._folder, self._name = folder, name
        self._tokens = ArrayWriter(folder / f"{name}.tokens.npy", np.int32)
        self._flags = ArrayWriter(folder / f"{name}.learn.npy", np.uint8) if with_flags else None
        self._held, self._held_flags = array("i"), bytearray()
        self.starts = array("q", (0,))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def add(self, *pieces: Sequence[int], flags: Sequence[int] | None = None) -> None:
        """Append one text, given in pieces."""
        for piece in pieces:
            self._held.extend(piece)
        if self._flags:
            self._held_flags.extend(flags or ())
        self.starts.append(self.starts[-1] + sum(map(len, pieces)))
        if len(self._held) > _BUFFERED_TOKENS:
            self._flush()

    def close(self) -> int:
        """Finish the files; gives the number of tokens."""
        self._flush()
        if self._flags:
            self._flags.close()
        write_array(self._folder, f"{self._name}.starts", self.starts, np.int64)
        return self._tokens.close()

    def _flush(self) -> None:
        self._tokens.add(np.frombuffer(self._held, dtype=np.intc))
        if self._flags:
            assert len(self._held_flags) == len(self._held)
            self._flags.add(np.frombuffer(self._held_flags, dtype=np.uint8))
        self._held, self._held_flags = array("i"), bytearray()


class TextWriter:
    """Keeps texts as they are."""

    def __init__(self, folder: Path, name: str):
        self._folder, self._name = folder, name
        self._bytes = ArrayWriter(folder / f"{name}.texts.npy", np.uint8)
        self._held = bytearray()
        self._starts = array("q", (0,))

    def add(self, text: str) -> None:
        """Append one text."""
        content = text[:LONGEST_SHOWN].encode("utf-8", "replace")
        self._held += content
        self._starts.append(self._starts[-1] + len(content))
        if len(self._held) > _BUFFERED_BYTES:
            self._flush()

    def close(self) -> None:
        """Finish the files."""
        self._flush()
        self._bytes.close()
        write_array(self._folder, f"{self._name}.text_starts", self._starts, np.int64)

    def _flush(self) -> None:
        self._bytes.add(np.frombuffer(self._held, dtype=np.uint8))
        self._held = bytearray()


def copy_tokens(folder: Path, name: str, rows: NDArray[np.int64], to: str) -> int:
    """Write some texts of a token array, with their flags, as another one; returns the number of tokens."""
    texts = open_tokens(folder, name)
    starts = _copy(texts.tokens, texts.starts, rows, ArrayWriter(folder / f"{to}.tokens.npy", np.int32))
    if has_array(folder, f"{name}.learn"):
        _copy(
            open_array(folder, f"{name}.learn"), texts.starts, rows, ArrayWriter(folder / f"{to}.learn.npy", np.uint8)
        )
    write_array(folder, f"{to}.starts", starts, np.int64)
    return int(starts[-1])


def copy_texts(folder: Path, name: str, rows: NDArray[np.int64], to: str) -> None:
    """Write some of the texts for display as those of another array."""
    content, starts = open_array(folder, f"{name}.texts"), np.asarray(open_array(folder, f"{name}.text_starts"))
    starts = _copy(content, starts, rows, ArrayWriter(folder / f"{to}.texts.npy", np.uint8))
    write_array(folder, f"{to}.text_starts", starts, np.int64)


def remove_arrays(folder: Path, name: str) -> None:
    """Remove the arrays of a name."""
    for path in folder.glob(f"{name}.*.npy"):
        path.unlink()


def _copy(
    values: NDArray[Any], starts: NDArray[Any], rows: NDArray[np.int64], writer: ArrayWriter
) -> NDArray[np.int64]:
    """Append the values of some rows, in parts of bounded size; returns where each row starts now."""
    lengths = starts[rows + 1] - starts[rows]
    ends = np.cumsum(lengths)
    at = 0
    while at < len(rows):
        done = ends[at - 1] if at else 0
        upto = max(at + 1, int(np.searchsorted(ends, done + _COPIED_VALUES, side="right")))
        some = lengths[at:upto]
        offsets = np.repeat(starts[rows[at:upto]] - (ends[at:upto] - some - done), some)
        writer.add(values[offsets + np.arange(int(some.sum()))])
        at = upto
    writer.close()
    return np.concatenate((np.zeros(1, np.int64), ends))


def write_array(folder: Path, name: str, values: Iterable[Any], dtype: type[np.generic]) -> None:
    """Write an array that fits in memory."""
    held = values if isinstance(values, (np.ndarray, array)) else list(values)
    np.save(folder / f"{name}.npy", np.asarray(held, dtype=dtype))


def write_tokens(folder: Path, name: str, texts: list[list[int]]) -> None:
    """Write texts that fit in memory as a token array."""
    writer = TokenWriter(folder, name)
    for text in texts:
        writer.add(text)
    writer.close()
