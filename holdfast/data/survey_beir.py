"""Surveys a BEIR folder: corpus.jsonl, queries.jsonl and the judgments in qrels/train.tsv, validation and test.

Titles go before their texts, as in BEIR's own evaluation. A judgment of 0 or less is a near-miss.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to
from holdfast.core.facts import SPLITS, DatasetFacts
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import content_hash, exact_hash, optional_text, text_of
from holdfast.data.files import Files, beir_file
from holdfast.data.read import Source, open_source
from holdfast.data.split import repeated, split_off
from holdfast.data.tally import TextLengths
from holdfast.data.tokenizer import ModelTokenizer

_NO_GROUP = 0


class IdIndex:
    """Finds rows by their id in little memory: hashes in two flat arrays, searched by bisection."""

    def __init__(self, hashes: Sequence[int]):
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self._places = array("Q", order)
        self._hashes = array("Q", (hashes[at] for at in order))

    def find(self, name: str) -> int | None:
        """The place of an id; None when it is missing."""
        wanted = exact_hash(name)
        at = bisect_left(self._hashes, wanted)
        if at < len(self._hashes) and self._hashes[at] == wanted:
            return self._places[at]
        return None


class BeirTexts:
    """The texts of a corpus or its queries, with their ids, groups and lengths."""

    def __init__(self, source: Source, group_column: str | None, *, keep_sample: bool):
        self.source, self.group_column = source, group_column
        self.ids = array("Q")
        self.groups = array("Q")
        self.contents = array("Q")
        self.lengths = TextLengths(keep_sample=keep_sample)
        self.with_title = 0

    def read(self, bad: BadRows, on_progress: Progress) -> IdIndex:
        """Read them all once; returns the index of their ids."""
        seen: set[int] = set()
        for row, name, text, group, has_title in self.rows(bad):
            mark = exact_hash(name)
            if mark in seen:
                bad.add(self.source.path, row, "duplicate-id", column="_id", value=name)
                continue
            seen.add(mark)
            self.ids.append(mark)
            self.groups.append(content_hash(group) if group else _NO_GROUP)
            self.contents.append(content_hash(text))
            self.lengths.add(text)
            self.with_title += has_title
            if len(self.ids) % 5000 == 0:
                on_progress(f"surveying {self.source.path.name}", len(self.ids), None)
        return IdIndex(self.ids)

    def rows(self, bad: BadRows) -> Iterator[tuple[int, str, str, str, bool]]:
        """Every usable row as (row, id, title and text, group, has a title)."""
        for row, values in self.source.rows(bad):
            try:
                name = text_of(values, "_id" if "_id" in values else "id", "id")
                title = optional_text(values, "title")
                text = optional_text(values, "text")
                if not text and not title:
                    text_of(values, "text")
                yield row, name, f"{title} {text}".strip(), optional_text(values, self.group_column), bool(title)
            except BadValue as value:
                bad.add_value(self.source.path, row, value)

    def texts(self) -> Iterator[str]:
        """Every usable text, read again in the same order."""
        seen: set[int] = set()
        for _, name, text, _, _ in self.rows(BadRows(1.0)):
            mark = exact_hash(name)
            if mark not in seen:
                seen.add(mark)
                yield text


@dataclass(frozen=True, slots=True, kw_only=True)
class BeirSurvey:
    """A BEIR folder that was read once."""

    request: DataRequest
    facts: DatasetFacts
    queries: BeirTexts
    passages: BeirTexts
    query_index: IdIndex
    passage_index: IdIndex
    judgments: Mapping[str, "array[int]"]  # split -> query, passage, query, passage, ...
    near_misses: Mapping[str, "array[int]"]  # the same, for what was judged not to answer
    bad: BadRows  # the rows that are not used


def survey_beir(
    request: DataRequest, files: Files, tokens: ModelTokenizer | None = None, on_progress: Progress = no_progress
) -> BeirSurvey:
    """Survey a BEIR folder."""
    folder = request.path
    if request.task not in (None, "two-tower"):
        raise RequestError(
            f"{folder} has queries and passages, which can train two-tower but not {request.task}",
            try_next=(set_to("task", "two-tower"),),
            setting="task",
        )
    qrels = find_qrels(folder)
    bad = BadRows(request.max_bad_share)
    passages = _texts(request, folder, "corpus", tokens is not None, on_progress)
    passage_index = passages.read(bad, on_progress)
    queries = _texts(request, folder, "queries", tokens is not None, on_progress)
    query_index = queries.read(bad, on_progress)
    judgments: dict[str, array[int]] = {}
    near_misses: dict[str, array[int]] = {}
    sources = [passages.source, queries.source]
    for split, path in qrels.items():
        source = open_source(path, request, on_progress)
        sources.append(source)
        judgments[split], near_misses[split] = read_qrels(source, query_index, passage_index, bad)
    count = sum(len(pairs) // 2 for pairs in judgments.values())
    bad.refuse_many(count + len(passages.ids) + len(queries.ids))
    splits = _split_off(request, judgments, near_misses, queries, folder)
    facts = DatasetFacts(
        task="two-tower",
        form="beir",
        rows=count,
        columns=tuple(dict.fromkeys((*passages.source.columns, *queries.source.columns))),
        text_column="title + text" if passages.with_title else "text",
        roles={"query": ("text",), "passage": ("title", "text") if passages.with_title else ("text",)},
        splits={split: len(judgments[split]) // 2 for split in SPLITS if split in judgments},
        lengths={
            role: texts.lengths.in_tokens(tokens.count, tokens.limit) if tokens else texts.lengths.summary()
            for role, texts in (("query", queries), ("passage", passages))
        },
        warnings=tuple(_warnings(judgments, queries, passages, bad, files)),
        bad_rows=tuple(bad.listed),
        bad_row_count=bad.count,
        incomplete_row_count=bad.incomplete,
        choices=_choices(folder, passages, splits),
        files=tuple(str(source.path) for source in sources),
        fingerprint=hashlib.sha256("".join(source.raw.sha256 for source in sources).encode()).hexdigest(),
    )
    return BeirSurvey(
        request=request,
        facts=facts,
        queries=queries,
        passages=passages,
        query_index=query_index,
        passage_index=passage_index,
        judgments=judgments,
        near_misses=near_misses,
        bad=bad,
    )


def _texts(request: DataRequest, folder: Path, name: str, keep_sample: bool, on_progress: Progress) -> BeirTexts:
    path = beir_file(folder, name)
    assert path is not None
    source = open_source(path, request, on_progress)
    group = request.group_column or names.find(names.GROUP, source.columns)
    return BeirTexts(source, group if group in source.columns else None, keep_sample=keep_sample)


def _split_off(
    request: DataRequest,
    judgments: dict[str, "array[int]"],
    near_misses: dict[str, "array[int]"],
    queries: BeirTexts,
    folder: Path,
) -> Choice[str]:
    """Split validation and test off the training judgments by query, where they were not given."""
    pairs = judgments["train"]
    if not pairs:
        raise RequestError(f"no judgment in {folder / 'qrels' / 'train.tsv'} can be used for training")
    keys = [queries.contents[pairs[at]] for at in range(0, len(pairs), 2)]
    codes = bytearray(len(keys))
    choice = split_off(codes, keys, [0] * len(keys), judgments, request)
    for code, name in enumerate(SPLITS):
        if code in codes and (not code or name not in judgments):
            kept = (pairs[2 * at : 2 * at + 2] for at, its_code in enumerate(codes) if its_code == code)
            judgments[name] = array("Q", chain.from_iterable(kept))
            near_misses.setdefault(name, array("Q"))
    return choice


def _choices(folder: Path, passages: BeirTexts, splits: Choice[str]) -> dict[str, Choice[str]]:
    found = {
        "format": Choice("BEIR folder", f"{folder.name} has a corpus, queries and qrels"),
        "task": Choice("two-tower", "the folder has queries, passages and judgments"),
        "splits": splits,
    }
    if passages.with_title:
        share = passages.with_title / len(passages.ids)
        found["passage"] = Choice("title + text", f"{share:.0%} of the passages have a title")
    if passages.group_column:
        found["group"] = Choice(passages.group_column, "passages of one article are never each other's negatives")
    return found


def _warnings(
    judgments: Mapping[str, "array[int]"], queries: BeirTexts, passages: BeirTexts, bad: BadRows, files: Files
) -> Iterator[DataWarning]:
    yield from files.warnings
    yield from bad.warnings()
    if copies := len(repeated(passages.contents)):
        yield data_warning("duplicate-passages", passages=copies)
    judged = {split: {pairs[at] for at in range(0, len(pairs), 2)} for split, pairs in judgments.items()}
    texts = {split: {queries.contents[query] for query in found} for split, found in judged.items()}
    for split in ("validation", "test"):
        if shared := texts.get(split, set()) & texts["train"]:
            yield data_warning("leakage", rows=len(shared), split=split, part="text")
    if unused := len(queries.ids) - len(set().union(*judged.values())):
        yield data_warning("unused-queries", queries=unused)


def find_qrels(folder: Path) -> dict[str, Path]:
    """The files of judgments by split; the one for training must exist."""
    found: dict[str, Path] = {}
    places = [folder / "qrels", folder]
    for place in places:
        for path in sorted(place.glob("*.tsv")) + sorted(place.glob("*.tsv.gz")) if place.is_dir() else ():
            split = names.SPLIT_VALUES.get(path.name.split(".")[0].removeprefix("qrels_").lower())
            if split:
                found.setdefault(split, path)
    if "train" not in found:
        raise RequestError(
            f"{folder} has no judgments for training",
            found=f"a corpus, queries and these qrels: {', '.join(path.name for path in found.values()) or 'none'}",
            try_next=("add qrels/train.tsv with the columns query-id, corpus-id and score",),
        )
    return {split: found[split] for split in SPLITS if split in found}


def read_qrels(source: Source, queries: IdIndex, passages: IdIndex, bad: BadRows) -> tuple["array[int]", "array[int]"]:
    """Judged pairs as flat arrays: those where the passage answers the query, and those where it does not."""
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
        raise BadValue(column, name, "unknown-id", where=where)
    return place


def _score(values: Mapping[str, object], column: str | None) -> float:
    if column is None:
        return 1.0
    try:
        return float(str(values.get(column)))
    except ValueError:
        raise BadValue(column, values.get(column), "not-score") from None
