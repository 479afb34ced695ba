"""Prepares data for two towers: pairs, triplets and lists, passages of articles, BEIR folders, precomputed vectors.

Near-misses, passages that look right for a query and are not, may come in a JSON lines file of their own: each line has
a query and a list, `{"query": ..., "negatives": [...]}`. Both are texts, ids of a BEIR folder or row numbers of a file
of vectors, whichever the data uses.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
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
from holdfast.data.examples import content_hash, exact_hash, passages_in, plain_text
from holdfast.data.read import open_source
from holdfast.data.shards import ArrayWriter, TextWriter, TokenWriter, write_array
from holdfast.data.split import draw
from holdfast.data.survey_beir import BeirSurvey
from holdfast.data.survey_table import TableSurvey
from holdfast.data.survey_vectors import VectorSurvey
from holdfast.data.tokenizer import ModelTokenizer, batches

Indices = NDArray[np.int64]
_NEAR_MISS_QUERY = ("query", "query_id", "qid", "anchor", "question", "index", "_id", "id")


class TowerWriter:
    """Writes the arrays of a corpus and its queries: tokens, truncated to the maximum length, and judgments."""

    def __init__(
        self, tokens: ModelTokenizer, length: int, prefixes: tuple[str, str], folder: Path, on_progress: Progress
    ):
        self._tokens, self._length, self._prefixes = tokens, length, prefixes
        self._folder, self._on_progress = folder, on_progress
        self._done, self._total = 0, 0
        self._overlong = self._corpus_tokens = 0
        self._splits: dict[str, SplitSize] = {}

    def expect(self, total: int) -> None:
        """Say how many texts there will be, for the progress."""
        self._total = total

    def write_corpus(self, texts: Iterable[str], groups: Sequence[int] | Indices) -> None:
        """Write all passages, and the number of the article of each where there are any."""
        self._corpus_tokens = self._write_texts("corpus", texts, self._prefixes[1])
        if len(groups):
            write_array(self._folder, "corpus.groups", groups, np.int64)

    def write_split(self, name: str, queries: Iterable[str], rows: Iterable[int], qrels: Indices) -> None:
        """Write the queries of a split, the row of each in its file, and their judgments."""
        self._splits[name] = SplitSize(rows=len(qrels), tokens=self._write_texts(name, queries, self._prefixes[0]))
        write_array(self._folder, f"{name}.rows", rows, np.int64)
        write_array(self._folder, f"{name}.qrels", qrels, np.int64)

    def write_negatives(self, pairs: Indices) -> None:
        """Write the near-misses of the training queries, if there are any."""
        if len(pairs):
            write_array(self._folder, "train.negatives", pairs, np.int64)

    def manifest(self, choices: Mapping[str, Choice[str]]) -> Manifest:
        """What the manifest says about the texts."""
        overlong: Choice[str] = Choice("truncate", f"{self._overlong:,} texts were longer and lost their end")
        return Manifest(
            task="two-tower",
            form="text",
            splits=self._splits,
            corpus_tokens=self._corpus_tokens,
            overlong_rows=self._overlong,
            choices={"overlong": overlong, **choices},
        )

    def _write_texts(self, name: str, texts: Iterable[str], prefix: str) -> int:
        writer = TokenWriter(self._folder, name)
        shown = TextWriter(self._folder, name) if name != "train" else None
        before, after = self._tokens.marks
        room = self._length - len(before) - len(after)
        for batch in batches(texts):
            for body in self._tokens.encode([prefix + text for text in batch] if prefix else batch):
                self._overlong += len(body) > room
                writer.add(before, body[:room], after)
            if shown:
                for text in batch:
                    shown.add(text)
            self._done += len(batch)
            self._on_progress("tokenizing", self._done, self._total)
        if shown:
            shown.close()
        return writer.close()


def prepare_pairs(survey: TableSurvey, writer: TowerWriter) -> Manifest:
    """Pairs, triplets and lists: every different passage once, and every different query of a split once."""
    passages, groups = _Distinct(), array("q")
    queries = {name: _Distinct() for name in survey.facts.splits}
    qrels = {name: array("q") for name in survey.facts.splits}
    negatives = array("q")
    group_numbers: dict[int, int] = {}
    unseen: list[str] = []  # near-misses that are not among the passages of the data

    def number_passage(text: str, group: int = -1) -> int:
        number = passages.number(text)
        if number == len(groups):
            groups.append(group)
        return number

    def number_near_miss(text: str) -> int:
        if passages.find(text) is None:
            unseen.append(text)
        return number_passage(text)

    for found in survey.examples():
        example = found.example
        query = queries[found.split].number(example.texts("query")[0], found.row)
        group = group_numbers.setdefault(content_hash(example.group), len(group_numbers)) if example.group else -1
        for text in example.texts("positive"):
            qrels[found.split].extend((query, number_passage(text, group), 1))
        for text in example.texts("negative"):
            passage = number_passage(text)
            if found.split == "train":
                negatives.extend((query, passage))
    choices = add_near_misses(survey.request, queries["train"].find, number_near_miss, negatives)
    writer.expect(len(passages) + sum(map(len, queries.values())))
    parts = ("positive", "negative")
    texts = (text for found in survey.examples() for part in parts for text in found.example.texts(part))
    writer.write_corpus(chain(passages.first_ones(texts), unseen), groups if group_numbers else ())
    for name, distinct in queries.items():
        texts = (found.example.texts("query")[0] for found in survey.examples() if found.split == name)
        writer.write_split(name, distinct.first_ones(texts), distinct.rows, as_table(qrels[name], 3))
    writer.write_negatives(as_table(negatives, 2))
    return writer.manifest(choices)


def prepare_passages(survey: TableSurvey, writer: TowerWriter) -> Manifest:
    """Passages of articles: each is a query for the others of its article.

    In training, each passage looks for the next one of its article; in an evaluation, all others of the article count.
    """
    seed = survey.request.seed
    articles: dict[str, dict[int, list[tuple[float, int]]]] = {name: {} for name in survey.facts.splits}
    groups, rows = array("q"), array("q")
    numbers: dict[int, int] = {}
    for at, found in enumerate(survey.examples()):
        group = numbers.setdefault(content_hash(found.example.group), len(numbers))
        groups.append(group)
        rows.append(found.row)
        place = draw(exact_hash(found.example.key), seed)
        articles[found.split].setdefault(group, []).append((place, at))
    qrels, asking = _passage_pairs(articles)
    writer.expect(len(groups) + sum(map(len, asking.values())))
    writer.write_corpus((found.example.key for found in survey.examples()), groups)
    for name, members in asking.items():
        wanted = set(members)
        texts = (found.example.key for at, found in enumerate(survey.examples()) if at in wanted)
        writer.write_split(name, texts, [rows[at] for at in members], as_table(qrels[name], 3))
    return writer.manifest({})


def prepare_beir(survey: BeirSurvey, writer: TowerWriter) -> Manifest:
    """A BEIR folder: the corpus as it is, and the queries that have a judgment."""
    writer.expect(len(survey.passages.ids) + len(survey.queries.ids))
    groups = numbered(survey.passages.groups) if survey.passages.group_column else ()
    writer.write_corpus(survey.passages.texts(), groups)
    near = array("q", survey.near_misses.get("train", ()))
    choices = add_near_misses(survey.request, survey.query_index.find, survey.passage_index.find, near)
    for name, flat in survey.judgments.items():
        pairs = as_table(flat, 2)
        judged = np.unique(pairs[:, 0])
        numbers = np.full(len(survey.queries.ids), -1, dtype=np.int64)
        numbers[judged] = np.arange(len(judged))
        wanted = set(judged.tolist())
        texts = (text for at, text in enumerate(survey.queries.texts()) if at in wanted)
        qrels = np.stack((numbers[pairs[:, 0]], pairs[:, 1], np.ones(len(pairs), dtype=np.int64)), axis=1)
        writer.write_split(name, texts, judged + 1, qrels)
        if name == "train" and near:
            table = as_table(near, 2)
            table = np.stack((numbers[table[:, 0]], table[:, 1]), axis=1)
            writer.write_negatives(table[table[:, 0] >= 0])
    return writer.manifest(choices)


def prepare_vectors(survey: VectorSurvey, folder: Path, on_progress: Progress) -> Manifest:
    """Precomputed vectors: the passages as the corpus, and the queries of each split."""
    usable = np.frombuffer(survey.usable, dtype=np.uint8).astype(bool)
    splits = np.frombuffer(survey.splits, dtype=np.uint8)
    numbers = np.cumsum(usable) - 1  # of each row among the usable ones
    sizes = survey.files[0].queries.shape[1], survey.files[0].passages.shape[1]
    corpus = ArrayWriter(folder / "corpus.vectors.npy", np.float32, sizes[1])
    for at, vectors in survey.passages():
        corpus.add(vectors[usable[at : at + len(vectors)]])
        on_progress("writing passages", at + len(vectors), len(usable))
    corpus.close()
    codes = {SPLITS.index(name): name for name in survey.facts.splits}
    writers = {code: ArrayWriter(folder / f"{name}.vectors.npy", np.float32, sizes[0]) for code, name in codes.items()}
    for at, vectors in survey.queries():
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
        write_array(folder, f"{name}.rows", [survey.row_in_file(row) for row in rows.tolist()], np.int64)
        sizes_of[name] = SplitSize(rows=count)
    if survey.groups:
        write_array(folder, "corpus.groups", np.asarray(numbered(survey.groups))[usable], np.int64)
    choices = _vector_near_misses(survey, folder, usable & (splits == 0), numbers)
    return Manifest(task="two-tower", form="vectors", splits=sizes_of, choices=choices)


def _vector_near_misses(
    survey: VectorSurvey, folder: Path, is_train: NDArray[np.bool_], numbers: Indices
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
        return None if row is None or not survey.usable[row] else int(numbers[row])

    pairs = array("q")
    choices = add_near_misses(survey.request, find_query, find_passage, pairs)
    if pairs:
        write_array(folder, "train.negatives", as_table(pairs, 2), np.int64)
    return choices


class _Distinct:
    """Numbers texts in the order of their first appearance, remembering a hash of each."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.rows = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, text: str, row: int = 0) -> int:
        """The number of a text, a new one where it was not seen before."""
        mark = exact_hash(text)
        found = self._numbers.setdefault(mark, len(self._numbers))
        if found == len(self.rows):
            self.rows.append(row)
        return found

    def find(self, text: str) -> int | None:
        """The number of a text that was seen before."""
        return self._numbers.get(exact_hash(text))

    def first_ones(self, texts: Iterable[str]) -> Iterator[str]:
        """Of these texts, read again, the first of each number, in the order of the numbers."""
        written = 0
        for text in texts:
            if self.find(text) == written:
                written += 1
                yield text


def _passage_pairs(
    articles: dict[str, dict[int, list[tuple[float, int]]]],
) -> tuple[dict[str, "array[int]"], dict[str, list[int]]]:
    """Judgments by split, and the passages that are queries, in the order of the corpus."""
    qrels: dict[str, array[int]] = {}
    asking: dict[str, list[int]] = {}
    for name, by_article in articles.items():
        answers: dict[int, list[int]] = {}
        for members in by_article.values():
            ordered = [at for _, at in sorted(members)]
            if len(ordered) < 2:
                continue  # alone in its article: part of the corpus, but never a query
            for place, at in enumerate(ordered):
                following = ordered[(place + 1) % len(ordered)]
                answers[at] = [following] if name == "train" else [other for other in ordered if other != at]
        asking[name] = sorted(answers)
        qrels[name] = array(
            "q",
            (value for number, at in enumerate(asking[name]) for other in answers[at] for value in (number, other, 1)),
        )
    return qrels, asking


def add_near_misses(
    request: DataRequest,
    find_query: Callable[[str], int | None],
    find_passage: Callable[[str], int | None],
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
    source = open_source(request.negatives, request)
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
