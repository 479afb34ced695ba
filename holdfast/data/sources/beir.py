"""A BEIR folder as a source: corpus.jsonl, queries.jsonl and the judgments in qrels/train.tsv, validation and test.

Titles go before their texts, as in BEIR's own evaluation. A judgment of 0 or less is a near-miss.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, leave_out, set_to
from holdfast.core.facts import SPLITS
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import content_hash, exact_hash, optional_text, text_of
from holdfast.data.files import beir_file
from holdfast.data.layout import ColumnLayout
from holdfast.data.rawfile import RawFile
from holdfast.data.read import RowFile, open_rows
from holdfast.data.sources import Findings, Sink
from holdfast.data.split import repeated, split_off
from holdfast.data.tally import TextLengths

_EVERY_ROWS = 5000
Take = Callable[[str, str], None]  # a text and its group


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
    """The texts of a corpus or its queries, with their ids and lengths."""

    def __init__(self, file: RowFile, group_column: str | None):
        self.file, self.group_column = file, group_column
        self.ids = array("Q")
        self.contents = array("Q")
        self.lengths = TextLengths()
        self.with_title = 0

    def read(self, bad: BadRows, on_progress: Progress, take: Take) -> IdIndex:
        """Read them all once, and hand over each text with its group; returns the index of their ids."""
        seen: set[int] = set()
        for row, values in self.file.rows(bad):
            try:
                name = text_of(values, "_id" if "_id" in values else "id", "id")
                title = optional_text(values, "title")
                text = optional_text(values, "text")
                if not text and not title:
                    text_of(values, "text")
                group = optional_text(values, self.group_column)
            except BadValue as value:
                bad.add_value(self.file.path, row, value)
                continue
            mark = exact_hash(name)
            if mark in seen:
                bad.add(self.file.path, row, "duplicate-id", column="_id", value=name)
                continue
            seen.add(mark)
            text = f"{title} {text}".strip()
            self.ids.append(mark)
            self.contents.append(content_hash(text))
            self.lengths.add(text)
            self.with_title += bool(title)
            take(text, group)
            if len(self.ids) % _EVERY_ROWS == 0:
                on_progress(f"reading {self.file.path.name}", len(self.ids), None)
        return IdIndex(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeirSource:
    """A BEIR folder whose files were opened."""

    request: DataRequest
    layout: ColumnLayout
    corpus: RowFile
    asked: RowFile
    qrels: Mapping[str, RowFile]  # split -> judgments

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of corpus and queries."""
        return tuple(dict.fromkeys((*self.corpus.columns, *self.asked.columns)))

    @property
    def files(self) -> tuple[tuple[str, RawFile], ...]:
        """Corpus, queries, and the judgments of each split."""
        return (
            ("corpus", self.corpus.raw),
            ("queries", self.asked.raw),
            *((split, one.raw) for split, one in self.qrels.items()),
        )

    def read(self, sink: Sink | None, bad: BadRows, on_progress: Progress) -> Findings:
        """Read passages, queries and judgments once."""
        group_column = self.layout.column("group")
        passages, queries = BeirTexts(self.corpus, group_column), BeirTexts(self.asked, None)
        group_numbers: dict[int, int] = {}

        def take_passage(text: str, group: str) -> None:
            number = group_numbers.setdefault(content_hash(group), len(group_numbers)) if group else -1
            if sink:
                sink.add_passage(text, number)

        def take_query(text: str, group: str) -> None:
            if sink:
                sink.add_query(text)

        passage_index = passages.read(bad, on_progress, take_passage)
        query_index = queries.read(bad, on_progress, take_query)
        judgments: dict[str, array[int]] = {}
        near_misses: dict[str, array[int]] = {}
        for split, file in self.qrels.items():
            judgments[split], near_misses[split] = read_qrels(file, query_index, passage_index, bad)
        count = sum(len(pairs) // 2 for pairs in judgments.values())
        bad.refuse_many(count + len(passages.ids) + len(queries.ids))
        chosen = _split_off(self.request, judgments, near_misses, queries)
        lengths = {"query": queries.lengths.summary(), "passage": passages.lengths.summary()}
        if sink:
            sink.finish_judged(judgments, near_misses.get("train", array("Q")), query_index.find, passage_index.find)
            lengths |= sink.lengths()
        return Findings(
            rows=count,
            splits={split: len(judgments[split]) // 2 for split in SPLITS if split in judgments},
            choices={**self.layout.choices, "splits": chosen, **_text_choice(passages)},
            lengths=lengths,
            warnings=tuple(_warnings(judgments, queries, passages, bad)),
        )


def open_beir_source(request: DataRequest, folder: Path, on_progress: Progress = no_progress) -> BeirSource:
    """Open the files of a BEIR folder."""
    if request.task not in (None, "two-tower"):
        raise RequestError(
            f"{folder} has queries and passages, which can train two-tower but not {request.task}",
            try_next=(set_to("task", "two-tower"),),
            setting="task",
        )
    for setting in ("validation", "test"):
        if getattr(request, setting):
            raise RequestError(
                f"a {setting} file cannot be added to a BEIR folder",
                found=f"the splits of {folder.name} are its qrels",
                try_next=(leave_out(setting), f"write the judgments to qrels/{setting}.tsv"),
                setting=setting,
            )
    qrels = find_qrels(folder)
    corpus, asked = (open_rows(_file(folder, name), request, on_progress) for name in ("corpus", "queries"))
    group = request.group_column or names.find(names.GROUP, corpus.columns)
    roles: dict[str, tuple[str, ...]] = {"query": ("text",), "passage": ("text",)}
    if "title" in corpus.columns:
        roles["passage"] = ("title", "text")
    choices = {
        "format": Choice("BEIR folder", f"{folder.name} has a corpus, queries and qrels"),
        "task": Choice("two-tower", "the folder has queries, passages and judgments"),
    }
    if group in corpus.columns:
        roles["group"] = (str(group),)
        choices["group"] = Choice(str(group), "passages of one article are never each other's negatives")
    return BeirSource(
        request=request,
        layout=ColumnLayout(task="two-tower", form="beir", roles=roles, choices=choices),
        corpus=corpus,
        asked=asked,
        qrels={split: open_rows(path, request, on_progress) for split, path in qrels.items()},
    )


def _file(folder: Path, name: str) -> Path:
    path = beir_file(folder, name)
    assert path is not None
    return path


def _split_off(
    request: DataRequest, judgments: dict[str, "array[int]"], near_misses: dict[str, "array[int]"], queries: BeirTexts
) -> Choice[str]:
    """Split validation and test off the training judgments by query, where they were not given."""
    pairs = judgments["train"]
    if not pairs:
        raise RequestError(f"no judgment in {request.path / 'qrels' / 'train.tsv'} can be used for training")
    keys = [queries.contents[pairs[at]] for at in range(0, len(pairs), 2)]
    codes = bytearray(len(keys))
    choice = split_off(codes, keys, [0] * len(keys), judgments, request)
    for code, name in enumerate(SPLITS):
        if code in codes and (not code or name not in judgments):
            kept = (pairs[2 * at : 2 * at + 2] for at, its_code in enumerate(codes) if its_code == code)
            judgments[name] = array("Q", chain.from_iterable(kept))
            near_misses.setdefault(name, array("Q"))
    return choice


def _text_choice(passages: BeirTexts) -> dict[str, Choice[str]]:
    if not passages.with_title:
        return {}
    share = passages.with_title / len(passages.ids)
    return {"passage": Choice("title + text", f"{share:.0%} of the passages have a title")}


def _warnings(
    judgments: Mapping[str, "array[int]"], queries: BeirTexts, passages: BeirTexts, bad: BadRows
) -> Iterator[DataWarning]:
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


def read_qrels(file: RowFile, queries: IdIndex, passages: IdIndex, bad: BadRows) -> tuple["array[int]", "array[int]"]:
    """Judged pairs as flat arrays: those where the passage answers the query, and those where it does not."""
    columns = file.columns
    query_column = names.find(("query_id", "qid", "query"), columns) or columns[0]
    passage_column = names.find(("corpus_id", "doc_id", "docid", "pid", "passage_id"), columns)
    passage_column = passage_column or columns[2 if len(columns) > 3 else 1]
    score_column = names.find(("score", "relevance", "rel", "label"), columns)
    score_column = score_column or (columns[-1] if len(columns) > 2 else None)
    positive, negative = array("Q"), array("Q")
    for row, values in file.rows(bad):
        try:
            query = _place(values, query_column, queries, "queries")
            passage = _place(values, passage_column, passages, "corpus")
            score = _score(values, score_column)
        except BadValue as value:
            bad.add_value(file.path, row, value)
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
