"""Judgements of a BEIR folder: which passage answers which query."""

from array import array
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue
from holdfast.data.formats.example import text_of
from holdfast.data.idindex import IdIndex
from holdfast.data.read import Source
from holdfast.data.split import SPLITS


def find_qrels(folder: Path) -> dict[str, Path]:
    """The files of judgements, by split; one to train on must be there."""
    found: dict[str, Path] = {}
    places = [folder / "qrels", folder]
    for place in places:
        for path in sorted(place.glob("*.tsv")) + sorted(place.glob("*.tsv.gz")) if place.is_dir() else ():
            split = names.SPLIT_VALUES.get(path.name.split(".")[0].removeprefix("qrels_").lower())
            if split:
                found.setdefault(split, path)
    if "train" not in found:
        raise RequestError(
            f"{folder} has no judgements to train on",
            seen=f"corpus and queries, and of qrels: {', '.join(path.name for path in found.values()) or 'none'}",
            try_next=("add qrels/train.tsv with query-id, corpus-id and score",),
        )
    return {split: found[split] for split in SPLITS if split in found}


def read_qrels(source: Source, queries: IdIndex, passages: IdIndex, bad: BadRows) -> tuple["array[int]", "array[int]"]:
    """Judged pairs as flat arrays: those that answer, those that do not."""
    columns = source.columns
    query_column = names.find(("query_id", "qid", "query"), columns) or columns[0]
    passage_column = names.find(("corpus_id", "doc_id", "docid", "pid", "passage_id"), columns)
    passage_column = passage_column or columns[2 if len(columns) > 3 else 1]
    score_column = names.find(("score", "relevance", "rel", "label"), columns)
    score_column = score_column or (columns[-1] if len(columns) > 2 else None)
    positive, negative = array("Q"), array("Q")
    for row, values in source.rows(bad):
        try:
            query = _place(values, query_column, queries, "queries")
            passage = _place(values, passage_column, passages, "corpus")
            score = _score(values, score_column)
        except BadValue as value:
            bad.add_value(source.path, row, value)
            continue
        (positive if score > 0 else negative).extend((query, passage))
    return positive, negative


def _place(values: Mapping[str, object], column: str, index: IdIndex, where: str) -> int:
    name = text_of(values, column, "id")
    place = index.find(name)
    if place is None:
        raise BadValue(column, name, f"the id is not in {where}.jsonl")
    return place


def _score(values: Mapping[str, object], column: str | None) -> float:
    if column is None:
        return 1.0
    try:
        return float(str(values.get(column)))
    except ValueError:
        raise BadValue(column, values.get(column), "a score is wanted, which is a number") from None
