"""Prepares rows for two towers: pairs, triplets and lists of passages, or passages of articles."""

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.formats.example import content_hash, exact_hash
from holdfast.data.request import Progress
from holdfast.data.shards import write_array
from holdfast.data.split import draw
from holdfast.data.survey_table import TableSurvey
from holdfast.data.tokens import Tokens
from holdfast.data.tower_writer import TowerWriter, add_near_misses, manifest_of, write_table


def prepare_pairs(
    survey: TableSurvey, tokens: Tokens, length: int, prefixes: tuple[str, str], folder: Path, on_progress: Progress
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
    survey: TableSurvey, tokens: Tokens, length: int, prefixes: tuple[str, str], folder: Path, on_progress: Progress
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
