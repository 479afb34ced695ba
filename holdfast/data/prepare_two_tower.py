"""Prepares data for two towers: pairs, triplets and lists, passages of articles, BEIR folders, precomputed vectors.

Near-misses, passages that look right for a query and are not, may come in a JSON lines file of their own: each line has
a query and a list, `{"query": ..., "negatives": [...]}`. Both are texts, ids of a BEIR folder or row numbers of a file
of vectors, whichever the data uses.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.core.facts import SPLITS
from holdfast.core.plan import Choice
from holdfast.core.prepared import Manifest, SplitSize
from holdfast.core.progress import Progress
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue
from holdfast.data.data_request import DataRequest
from holdfast.data.encoding_batches import EncodingBatches
from holdfast.data.examples import Example, content_hash, exact_hash, passages_in, plain_text
from holdfast.data.read import open_rows
from holdfast.data.shards import (
    ArrayWriter,
    TextWriter,
    TokenWriter,
    copy_texts,
    copy_tokens,
    remove_arrays,
    write_array,
)
from holdfast.data.sources import Find, Sink
from holdfast.data.sources.vectors import VectorRows, VectorSource
from holdfast.data.split import draw
from holdfast.data.tally import Tally
from holdfast.data.tokenizer import ModelTokenizer

Indices = NDArray[np.int64]
Prefixes = tuple[str, str]  # what is put before each query and each passage
NO_PAIRS: Indices = np.empty((0, 2), np.int64)
_QUERIES = "queries"  # the arrays of the draft with the queries of all splits
_NEAR_MISS_QUERY = ("query", "query_id", "qid", "anchor", "question", "index", "_id", "id")


class TowerWriter(Sink):
    """Tokenizes passages and queries as they are read, each text once, and writes the judgments of each split."""

    def __init__(self, request: DataRequest, tokens: ModelTokenizer, length: int, prefixes: Prefixes, folder: Path):
        self._request, self._folder, self._prefixes = request, folder, prefixes
        self._before, self._after = tokens.marks
        self._room = length - len(self._before) - len(self._after)
        self._overlong = 0
        self._passages = self._writer_of(tokens, "corpus")
        self._queries = self._writer_of(tokens, _QUERIES)
        self._passage_numbers, self._query_numbers = _Numbers(), _Numbers()
        self._groups = array("q")  # of each passage; -1 for none
        self._group_numbers: dict[int, int] = {}
        self._judged, self._near = array("q"), array("q")  # example, query, passage; one after the other
        self._members: list[array[int]] = []  # passages of each article
        self._places = array("d")  # of each passage in its article
        self._added = 0  # examples
        self._sizes: dict[str, SplitSize] = {}

    def add(self, example: Example, path: Path, row: int) -> None:
        """Take the texts of one row: a query with passages, or a passage of an article."""
        number, self._added = self._added, self._added + 1
        group = self._group_number(example.group)
        if example.parts[0][0] == "passage":
            if group == len(self._members):
                self._members.append(array("q"))
            self._members[group].append(number)
            self._places.append(draw(exact_hash(example.key), self._request.seed))
            self.add_passage(example.key, group)
            if self._prefixes[0] != self._prefixes[1]:
                self.add_query(example.key)
            return
        query = self._number(example.texts("query")[0], self._query_numbers, self.add_query)
        for text in example.texts("positive"):
            self._judged.extend((number, query, self._number_passage(text, group)))
        for text in example.texts("negative"):
            self._near.extend((number, query, self._number_passage(text)))

    def add_passage(self, text: str, group: int = -1) -> None:
        """Take one passage, which gets the next number."""
        self._groups.append(group)
        self._passages.add(self._prefixes[1] + text, text)

    def add_query(self, text: str) -> None:
        """Take one query, which gets the next number."""
        self._queries.add(self._prefixes[0] + text, text)

    def finish(self, tally: Tally, labels: tuple[str, ...]) -> None:
        """Write the judgments of every split."""
        codes, rows = np.frombuffer(tally.splits, np.uint8), np.frombuffer(tally.rows, np.uint64).astype(np.int64)
        split_of = {code: name for code, name in enumerate(SPLITS) if code in tally.splits}
        if self._members:
            pairs_of = {name: self._article_pairs(tally, code) for code, name in split_of.items()}
            self._write({name: (pairs, rows[pairs[:, 0]]) for name, pairs in pairs_of.items()}, NO_PAIRS, {})
            return
        judged, near = as_table(self._judged, 3), as_table(self._near, 3)
        found = {name: judged[codes[judged[:, 0]] == code] for code, name in split_of.items()}
        trained = set(found["train"][:, 1].tolist())
        file_pairs = array("q")
        choices = add_near_misses(
            self._request,
            lambda text: number if (number := self._query_numbers.find(text)) in trained else None,
            self._number_passage,
            file_pairs,
        )
        pairs = np.concatenate((near[codes[near[:, 0]] == 0][:, 1:], as_table(file_pairs, 2)))
        self._write({name: (table[:, 1:], rows[table[:, 0]]) for name, table in found.items()}, pairs, choices)

    def finish_judged(
        self, judged: Mapping[str, "array[int]"], near: "array[int]", find_query: Find, find_passage: Find
    ) -> None:
        """Write the judgments of a BEIR folder."""
        pairs = array("q", near)
        choices = add_near_misses(self._request, find_query, find_passage, pairs)
        tables = {name: as_table(flat, 2) for name, flat in judged.items()}
        self._write({name: (table, table[:, 0] + 1) for name, table in tables.items()}, as_table(pairs, 2), choices)

    def _write(
        self, judged: Mapping[str, tuple[Indices, Indices]], near: Indices, choices: Mapping[str, Choice[str]]
    ) -> None:
        """Write (query, passage) pairs and their rows by split; near-misses of queries without a judgment are left."""
        corpus_tokens = self._passages.end()
        self._queries.end()
        asking = "corpus" if self._members and self._prefixes[0] == self._prefixes[1] else _QUERIES
        if max(self._groups, default=-1) >= 0:
            write_array(self._folder, "corpus.groups", self._groups, np.int64)
        for name, (pairs, rows) in judged.items():
            queries, first = np.unique(pairs[:, 0], return_index=True)
            count = copy_tokens(self._folder, asking, queries, name)
            if name != "train":
                copy_texts(self._folder, asking, queries, name)
            self._sizes[name] = SplitSize(rows=len(pairs), tokens=count)
            write_array(self._folder, f"{name}.rows", rows[first], np.int64)
            places = np.searchsorted(queries, pairs[:, 0])
            ones = np.ones(len(pairs), np.int64)
            write_array(self._folder, f"{name}.qrels", np.stack((places, pairs[:, 1], ones), axis=1), np.int64)
            if name == "train" and len(known := near[np.isin(near[:, 0], queries)]):
                negatives = np.stack((np.searchsorted(queries, known[:, 0]), known[:, 1]), axis=1)
                write_array(self._folder, "train.negatives", negatives, np.int64)
        remove_arrays(self._folder, _QUERIES)
        overlong: Choice[str] = Choice("truncate", f"{self._overlong:,} texts were longer and lost their end")
        self.manifest = Manifest(
            task="two-tower",
            form="text",
            splits=self._sizes,
            corpus_tokens=corpus_tokens,
            overlong_rows=self._overlong,
            choices={"overlong": overlong, **choices},
        )

    def _article_pairs(self, tally: Tally, code: int) -> Indices:
        """In training, each passage looks for the next one of its article; in an evaluation, for all others.

        A passage alone in its article is part of the corpus, but never a query.
        """
        pairs = array("q")
        for members in self._members:
            here = [at for at in members if tally.splits[at] == code]
            ordered = sorted(here, key=lambda at: (self._places[at], at))
            for place, at in enumerate(ordered if len(ordered) > 1 else ()):
                following = ordered[(place + 1) % len(ordered)]
                for other in [following] if code == 0 else [other for other in ordered if other != at]:
                    pairs.extend((at, other))
        table = as_table(pairs, 2)
        return table[np.argsort(table[:, 0], kind="stable")]

    def _number(self, text: str, numbers: "_Numbers", add: Callable[[str], None]) -> int:
        number, is_new = numbers.number(text)
        if is_new:
            add(text)
        return number

    def _number_passage(self, text: str, group: int = -1) -> int:
        return self._number(text, self._passage_numbers, lambda text: self.add_passage(text, group))

    def _group_number(self, group: str) -> int:
        return self._group_numbers.setdefault(content_hash(group), len(self._group_numbers)) if group else -1

    def _writer_of(self, tokens: ModelTokenizer, name: str) -> "_TextsWriter":
        return _TextsWriter(tokens, self._room, self._count_overlong, self._folder, name)

    def _count_overlong(self) -> None:
        self._overlong += 1


class _TextsWriter:
    """Tokenizes the texts of a corpus or of all queries, truncated, and keeps them for display."""

    def __init__(self, tokens: ModelTokenizer, room: int, on_overlong: Callable[[], None], folder: Path, name: str):
        self._marks, self._room, self._on_overlong = tokens.marks, room, on_overlong
        self._tokens, self._texts = TokenWriter(folder, name), TextWriter(folder, name)
        self._batches = EncodingBatches(tokens.encode, self._write)

    def add(self, text: str, shown: str) -> None:
        """Append one text, and how it is shown."""
        self._texts.add(shown)
        self._batches.add(text, len(text))

    def end(self) -> int:
        """Finish the files; returns the number of tokens."""
        self._batches.end()
        self._texts.close()
        return self._tokens.close()

    def _write(self, texts: list[str], encoded: list[list[int]]) -> None:
        before, after = self._marks
        for body in encoded:
            if len(body) > self._room:
                self._on_overlong()
            self._tokens.add(before, body[: self._room], after)


def write_vectors(source: VectorSource, found: VectorRows, folder: Path, on_progress: Progress) -> Manifest:
    """Write precomputed vectors: the passages as the corpus, and the queries of each split."""
    usable = np.frombuffer(found.usable, dtype=np.uint8).astype(bool)
    splits = np.frombuffer(found.splits, dtype=np.uint8)
    numbers = np.cumsum(usable) - 1  # of each row among the usable ones
    sizes = source.opened[0].queries.shape[1], source.opened[0].passages.shape[1]
    corpus = ArrayWriter(folder / "corpus.vectors.npy", np.float32, sizes[1])
    for at, vectors in source.passages():
        corpus.add(vectors[usable[at : at + len(vectors)]])
        on_progress("writing passages", at + len(vectors), len(usable))
    corpus.close()
    codes = {code: name for code, name in enumerate(SPLITS) if (usable & (splits == code)).any()}
    writers = {code: ArrayWriter(folder / f"{name}.vectors.npy", np.float32, sizes[0]) for code, name in codes.items()}
    for at, vectors in source.queries():
        here = slice(at, at + len(vectors))
        for code, writer in writers.items():
            writer.add(vectors[usable[here] & (splits[here] == code)])
        on_progress("writing queries", at + len(vectors), len(usable))
    sizes_of = {}
    for code, name in codes.items():
        count = writers[code].close()
        rows = np.flatnonzero(usable & (splits == code))
        qrels = np.stack((np.arange(count), numbers[rows], np.ones(count, dtype=np.int64)), axis=1)
        write_array(folder, f"{name}.qrels", qrels, np.int64)
        write_array(folder, f"{name}.rows", [source.row_in_file(row) for row in rows.tolist()], np.int64)
        sizes_of[name] = SplitSize(rows=count)
    if found.groups:
        write_array(folder, "corpus.groups", np.asarray(numbered(found.groups))[usable], np.int64)
    choices = _vector_near_misses(source.request, found, folder, usable & (splits == 0), numbers)
    return Manifest(task="two-tower", form="vectors", splits=sizes_of, choices=choices)


def _vector_near_misses(
    request: DataRequest, found: VectorRows, folder: Path, is_train: NDArray[np.bool_], numbers: Indices
) -> dict[str, Choice[str]]:
    """Near-misses of vectors are given by row, counted from 0 as numpy does."""
    places = np.cumsum(is_train) - 1

    def row_of(text: str) -> int | None:
        return int(text) if text.isdecimal() and int(text) < len(numbers) else None

    def find_query(text: str) -> int | None:
        row = row_of(text)
        return None if row is None or not is_train[row] else int(places[row])

    def find_passage(text: str) -> int | None:
        row = row_of(text)
        return None if row is None or not found.usable[row] else int(numbers[row])

    pairs = array("q")
    choices = add_near_misses(request, find_query, find_passage, pairs)
    if pairs:
        write_array(folder, "train.negatives", as_table(pairs, 2), np.int64)
    return choices


class _Numbers:
    """Numbers texts in the order of their first appearance, remembering a hash of each."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def number(self, text: str) -> tuple[int, bool]:
        """The number of a text, and whether it is new."""
        known = len(self._numbers)
        found = self._numbers.setdefault(exact_hash(text), known)
        return found, found == known

    def find(self, text: str) -> int | None:
        """The number of a text that was seen before."""
        return self._numbers.get(exact_hash(text))


def add_near_misses(
    request: DataRequest,
    find_query: Find,
    find_passage: Find,
    pairs: "array[int]",
) -> dict[str, Choice[str]]:
    """Add the near-misses in the user's file to (query, passage) pairs; returns how many were found in the data."""
    if request.negatives is None:
        return {}
    lines = unknown = lost = 0
    before = len(pairs)
    for query_text, texts in read_near_misses(request):
        lines += 1
        query = find_query(query_text)
        if query is None:
            unknown += 1
            continue
        for text in texts:
            passage = find_passage(text)
            lost += passage is None
            if passage is not None:
                pairs.extend((query, passage))
    added = (len(pairs) - before) // 2
    seen = f"{lines:,} lines; {unknown:,} with a query outside the training data, {lost:,} passages not in the data"
    if not added:
        raise RequestError(
            f"no near-miss in {request.negatives.name} belongs to the data", found=seen, setting="negatives"
        )
    return {"near-misses": Choice(f"{added:,}", seen)}


def read_near_misses(request: DataRequest) -> Iterator[tuple[str, list[str]]]:
    """Every query with its near-misses."""
    assert request.negatives is not None
    source = open_rows(request.negatives, request)
    query_column = names.find(_NEAR_MISS_QUERY, source.columns)
    negatives = names.find_all(names.NEGATIVE, source.columns)
    if not query_column or not negatives:
        raise RequestError(
            f"{source.path.name} has no queries with lists of near-misses",
            found=f"its columns: {', '.join(source.columns)}",
            try_next=('write lines such as {"query": ..., "negatives": [...]}',),
            setting="negatives",
        )
    bad, count = BadRows(request.max_bad_share), 0
    for row, values in source.rows(bad):
        try:
            query = plain_text(values.get(query_column), query_column)
            found = [text for column in negatives for text in passages_in(values.get(column), column)]
            if not query:
                raise BadValue(query_column, "", "empty", what="query")
        except BadValue as value:
            bad.add_value(source.path, row, value)
            continue
        count += 1
        yield query, found
    bad.refuse_many(count)


def numbered(hashes: "array[int]") -> Indices:
    """Groups by number; -1 for none."""
    values = np.asarray(hashes, dtype=np.uint64)
    _, numbers = np.unique(values, return_inverse=True)
    return np.where(values == 0, -1, numbers).astype(np.int64)


def as_table(flat: "array[int]", width: int) -> Indices:
    """Flat numbers as the rows of a table."""
    return np.asarray(flat, dtype=np.int64).reshape(-1, width)
