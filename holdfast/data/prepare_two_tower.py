"""Prepares data for two towers: pairs, triplets and lists, passages of articles, BEIR folders, precomputed vectors.

Near-misses, passages that look right for a query and are not, may come in a JSON lines file of their own: each line has
a query and a list, `{"query": ..., "negatives": [...]}`. Both are texts, ids of a BEIR folder or row numbers of a file
of vectors, whichever the data uses.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.core.plan import Choice
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue
from holdfast.data.data_request import DataRequest, Progress
from holdfast.data.examples import content_hash, exact_hash, passages_in, plain_text
from holdfast.data.read import open_source
from holdfast.data.shards import ArrayWriter, TextWriter, TokenWriter, write_array
from holdfast.data.split import SPLITS, draw
from holdfast.data.survey_beir import BeirSurvey
from holdfast.data.survey_table import TableSurvey
from holdfast.data.survey_vectors import VectorSurvey, slices
from holdfast.data.tokenizer import ModelTokenizer, batches

Indices = NDArray[np.int64]


def prepare_pairs(
    survey: TableSurvey,
    tokens: ModelTokenizer,
    length: int,
    prefixes: tuple[str, str],
    folder: Path,
    on_progress: Progress,
) -> dict[str, Any]:
    """Pairs, triplets and lists: every different passage once, every different query of a split once."""
    passages, groups = _Distinct(), array("q")
    queries = {name: _Distinct() for name in survey.facts.splits}
    qrels = {name: array("q") for name in survey.facts.splits}
    negatives = array("q")
    group_numbers: dict[int, int] = {}
    for found in survey.examples():
        example = found.example
        query = queries[found.split].number(example.texts("query")[0], found.row)
        group = group_numbers.setdefault(content_hash(example.group), len(group_numbers)) if example.group else -1
        for text in example.texts("positive"):
            passage = passages.number(text)
            if passage == len(groups):
                groups.append(group)
            qrels[found.split].extend((query, passage, 1))
        for text in example.texts("negative"):
            passage = passages.number(text)
            if passage == len(groups):
                groups.append(-1)
            if found.split == "train":
                negatives.extend((query, passage))
    extra: list[str] = []

    def find_passage(text: str) -> int:
        passage = passages.number(text)
        if passage == len(groups):
            groups.append(-1)
            extra.append(text)
        return passage

    choices = add_near_misses(survey.request, queries["train"].find, find_passage, negatives)
    writer = TowerWriter(tokens, length, folder, on_progress, len(passages) + sum(map(len, queries.values())))
    writer.write("corpus", _passages_of(survey, passages, extra), prefixes[1])
    for name, distinct in queries.items():
        writer.write(name, _queries_of(survey, name, distinct), prefixes[0])
        write_array(folder, f"{name}.rows", distinct.rows, np.int64)
        write_table(folder, f"{name}.qrels", qrels[name], 3)
    if len(negatives):
        write_table(folder, "train.negatives", negatives, 2)
    if group_numbers:
        write_array(folder, "corpus.groups", groups, np.int64)
    return manifest_of(writer, {name: len(pairs) // 3 for name, pairs in qrels.items()}, choices)


def prepare_passages(
    survey: TableSurvey,
    tokens: ModelTokenizer,
    length: int,
    prefixes: tuple[str, str],
    folder: Path,
    on_progress: Progress,
) -> dict[str, Any]:
    """Passages of articles: each is a query for another one of its article.

    In training each passage asks for the next one of its article; in an evaluation all others of the article count.
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
    writer = TowerWriter(tokens, length, folder, on_progress, len(groups) + sum(map(len, asking.values())))
    writer.write("corpus", (found.example.key for found in survey.examples()), prefixes[1])
    for name, passages in asking.items():
        wanted = set(passages)
        texts = (found.example.key for at, found in enumerate(survey.examples()) if at in wanted)
        writer.write(name, texts, prefixes[0])
        write_array(folder, f"{name}.rows", [rows[at] for at in passages], np.int64)
        write_table(folder, f"{name}.qrels", qrels[name], 3)
    write_array(folder, "corpus.groups", groups, np.int64)
    return manifest_of(writer, {name: len(pairs) // 3 for name, pairs in qrels.items()}, {})


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


def _passages_of(survey: TableSurvey, passages: _Distinct, extra: Sequence[str]) -> Iterator[str]:
    """Every different passage, in the order of their numbers."""
    written = 0
    for found in survey.examples():
        for part in ("positive", "negative"):
            for text in found.example.texts(part):
                if passages.find(text) == written:
                    written += 1
                    yield text
    yield from extra


def _queries_of(survey: TableSurvey, split: str, queries: _Distinct) -> Iterator[str]:
    """Every different query of a split, in the order of their numbers."""
    written = 0
    for found in survey.examples():
        if found.split == split:
            text = found.example.texts("query")[0]
            if queries.find(text) == written:
                written += 1
                yield text


def _passage_pairs(
    articles: dict[str, dict[int, list[tuple[float, int]]]],
) -> tuple[dict[str, "array[int]"], dict[str, list[int]]]:
    """Judgements by split, and the passages that ask, in the order of the corpus."""
    qrels: dict[str, array[int]] = {}
    asking: dict[str, list[int]] = {}
    for name, by_article in articles.items():
        answers: dict[int, list[int]] = {}
        for members in by_article.values():
            ordered = [at for _, at in sorted(members)]
            if len(ordered) < 2:
                continue  # alone in its article: it is searched, but asks for nothing
            for place, at in enumerate(ordered):
                following = ordered[(place + 1) % len(ordered)]
                answers[at] = [following] if name == "train" else [other for other in ordered if other != at]
        asking[name] = sorted(answers)
        qrels[name] = array(
            "q",
            (value for number, at in enumerate(asking[name]) for other in answers[at] for value in (number, other, 1)),
        )
    return qrels, asking


def prepare_beir(
    survey: BeirSurvey,
    tokens: ModelTokenizer,
    length: int,
    prefixes: tuple[str, str],
    folder: Path,
    on_progress: Progress,
) -> dict[str, Any]:
    """Write the corpus as it is, and of the queries those that are judged."""
    writer = TowerWriter(tokens, length, folder, on_progress, len(survey.passages.ids) + len(survey.queries.ids))
    writer.write("corpus", survey.passages.texts(), prefixes[1])
    if survey.passages.group_column:
        write_array(folder, "corpus.groups", numbered(survey.passages.groups), np.int64)
    near = array("q", survey.near_misses.get("train", ()))
    choices = add_near_misses(survey.request, survey.query_index.find, survey.passage_index.find, near)
    counts = {}
    for name, flat in survey.judgements.items():
        pairs = as_table(flat, 2)
        asked = np.unique(pairs[:, 0])
        numbers = np.full(len(survey.queries.ids), -1, dtype=np.int64)
        numbers[asked] = np.arange(len(asked))
        wanted = set(asked.tolist())
        writer.write(name, (text for at, text in enumerate(survey.queries.texts()) if at in wanted), prefixes[0])
        qrels = np.stack((numbers[pairs[:, 0]], pairs[:, 1], np.ones(len(pairs), dtype=np.int64)), axis=1)
        write_array(folder, f"{name}.qrels", qrels, np.int64)
        write_array(folder, f"{name}.rows", asked + 1, np.int64)
        if name == "train" and near:
            table = as_table(near, 2)
            table = np.stack((numbers[table[:, 0]], table[:, 1]), axis=1)
            write_array(folder, "train.negatives", table[table[:, 0] >= 0], np.int64)
        counts[name] = len(pairs)
    return manifest_of(writer, counts, choices)


def prepare_vectors(survey: VectorSurvey, folder: Path, on_progress: Progress) -> dict[str, Any]:
    """Vectors that were made before: the passages as the corpus, the queries of each split."""
    usable = np.frombuffer(survey.usable, dtype=np.uint8).astype(bool)
    splits = np.frombuffer(survey.splits, dtype=np.uint8)
    numbers = np.cumsum(usable) - 1  # of each row among those that can be used
    corpus: ArrayWriter | None = None
    for at, vectors in slices(survey.path, survey.passages):
        corpus = corpus or ArrayWriter(folder / "corpus.vectors.npy", np.float32, vectors.shape[1])
        corpus.add(vectors[usable[at : at + len(vectors)]])
        on_progress("writing passages", at + len(vectors), len(usable))
    writers: dict[int, ArrayWriter] = {}
    for at, vectors in slices(survey.path, survey.queries):
        for code, name in enumerate(SPLITS):
            here = usable[at : at + len(vectors)] & (splits[at : at + len(vectors)] == code)
            if code not in writers:
                writers[code] = ArrayWriter(folder / f"{name}.vectors.npy", np.float32, vectors.shape[1])
            writers[code].add(vectors[here])
        on_progress("writing queries", at + len(vectors), len(usable))
    assert corpus is not None
    corpus.close()
    counts = {}
    for code, writer in writers.items():
        count = writer.close()
        name = SPLITS[code]
        if not count:
            (folder / f"{name}.vectors.npy").unlink()
            continue
        rows = np.flatnonzero(usable & (splits == code))
        qrels = np.stack((np.arange(count), numbers[rows], np.ones(count, dtype=np.int64)), axis=1)
        write_array(folder, f"{name}.qrels", qrels, np.int64)
        write_array(folder, f"{name}.rows", rows + 1, np.int64)
        counts[name] = {"rows": count, "tokens": 0}
    if survey.groups:
        write_array(folder, "corpus.groups", np.asarray(numbered(survey.groups))[usable], np.int64)
    choices = _near_misses(survey, folder, usable & (splits == 0), numbers)
    return {"form": "vectors", "splits": counts, "choices": choices}


def _near_misses(
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
        write_table(folder, "train.negatives", pairs, 2)
    return choices


class TowerWriter:
    """Tokenizes texts into token arrays, cutting each to the length; counts what it wrote."""

    def __init__(self, tokens: ModelTokenizer, length: int, folder: Path, on_progress: Progress, whole: int):
        self._tokens, self._length, self._folder = tokens, length, folder
        self._on_progress, self._whole = on_progress, whole
        self._done = 0
        self.cut = 0
        self.token_counts: dict[str, int] = {}

    def write(self, name: str, texts: Iterable[str], prefix: str) -> None:
        """Write one token array, and the texts themselves where people will see them."""
        writer = TokenWriter(self._folder, name)
        shown = TextWriter(self._folder, name) if name != "train" else None
        before, after = self._tokens.marks
        room = self._length - len(before) - len(after)
        for batch in batches(texts):
            for body in self._tokens.encode([prefix + text for text in batch] if prefix else batch):
                self.cut += len(body) > room
                writer.add(before, body[:room], after)
            if shown:
                for text in batch:
                    shown.add(text)
            self._done += len(batch)
            self._on_progress("tokenizing", self._done, self._whole)
        self.token_counts[name] = writer.close()
        if shown:
            shown.close()


def manifest_of(writer: TowerWriter, rows: dict[str, int], choices: dict[str, Choice[str]]) -> dict[str, Any]:
    """What the manifest says of texts that were written."""
    because = f"{writer.cut:,} texts were longer and lost their end"
    return {
        "form": "text",
        "splits": {name: {"rows": count, "tokens": writer.token_counts[name]} for name, count in rows.items()},
        "corpus_tokens": writer.token_counts["corpus"],
        "overlong_rows": writer.cut,
        "choices": {"overlong": Choice("truncate", because), **choices},
    }


def add_near_misses(
    request: DataRequest,
    find_query: Callable[[str], int | None],
    find_passage: Callable[[str], int | None],
    pairs: "array[int]",
) -> dict[str, Choice[str]]:
    """Add the near-misses of the user's file to (query, passage) pairs; says how many fit the data."""
    if request.negatives is None:
        return {}
    lines = strangers = lost = 0
    before = len(pairs)
    for query_text, texts in read_near_misses(request):
        lines += 1
        query = find_query(query_text)
        if query is None:
            strangers += 1
            continue
        for text in texts:
            passage = find_passage(text)
            lost += passage is None
            if passage is not None:
                pairs.extend((query, passage))
    added = (len(pairs) - before) // 2
    seen = f"{lines:,} lines; {strangers:,} with a query that is not trained on, {lost:,} passages that are not there"
    if not added:
        raise RequestError(f"no near-miss of {request.negatives.name} fits the data", seen=seen)
    return {"near-misses": Choice(f"{added:,}", seen)}


def numbered(hashes: "array[int]") -> Indices:
    """Groups by number; -1 where there is none."""
    values = np.asarray(hashes, dtype=np.uint64)
    _, numbers = np.unique(values, return_inverse=True)
    return np.where(values == 0, -1, numbers).astype(np.int64)


def as_table(flat: "array[int]", width: int) -> Indices:
    """Flat numbers as rows of a table."""
    return np.asarray(flat, dtype=np.int64).reshape(-1, width)


def write_table(folder: Path, name: str, flat: "array[int]", width: int) -> None:
    """Write flat numbers as a table."""
    write_array(folder, name, as_table(flat, width), np.int64)


_QUERY = ("query", "query_id", "qid", "anchor", "question", "index", "_id", "id")


def read_near_misses(request: DataRequest) -> Iterator[tuple[str, list[str]]]:
    """Every query with its near-misses."""
    assert request.negatives is not None
    source = open_source(request.negatives, request)
    query_column = names.find(_QUERY, source.columns)
    negatives = names.find_all(names.NEGATIVE, source.columns)
    if not query_column or not negatives:
        raise RequestError(
            f"{source.path.name} has no query with a list of near-misses",
            seen=f"its columns: {', '.join(source.columns)}",
            try_next=('give lines of {"query": ..., "negatives": [...]}',),
        )
    bad, count = BadRows(request.max_bad_share), 0
    for row, values in source.rows(bad):
        try:
            query = plain_text(values.get(query_column), query_column)
            found = [text for column in negatives for text in passages_in(values.get(column), column)]
            if not query:
                raise BadValue(query_column, "", "the query is empty")
        except BadValue as value:
            bad.add_value(source.path, row, value)
            continue
        count += 1
        yield query, found
    bad.refuse_many(count)
