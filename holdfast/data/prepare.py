"""Reads a detected dataset once, tokenizes it and writes it as memory-mapped arrays, described in `shards`.

Reads: the dataset, the tokenizer. Writes: a folder with `manifest.json` last. Everything goes to a draft folder that is
renamed when it is complete, so a preparation that was killed leaves nothing that looks finished.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from msgspec import structs

from holdfast.core.artifacts import flush_to_disk, to_plain
from holdfast.core.disk_space import FULL, why_not
from holdfast.core.errors import MachineError, RequestError, set_to
from holdfast.core.facts import SPLITS, DatasetFacts, Task
from holdfast.core.parent_death import is_alive
from holdfast.core.plan import USUAL_LENGTH, Choice
from holdfast.core.prepared import FORMAT, Manifest
from holdfast.core.progress import Progress, no_progress
from holdfast.core.records import read_record, write_record
from holdfast.core.runfolder import DATASET, DROPPED, MANIFEST
from holdfast.data.badrows import BadRows
from holdfast.data.chat import Chat
from holdfast.data.label_forms import in_order
from holdfast.data.prepare_causal import ConversationWriter, TextPieceWriter
from holdfast.data.prepare_classify import LabeledWriter
from holdfast.data.prepare_two_tower import TowerWriter, write_vectors
from holdfast.data.rawfile import fingerprint_of, look_at
from holdfast.data.shards import LONGEST_SHOWN, read_manifest, write_manifest
from holdfast.data.sources import Source
from holdfast.data.sources.vectors import VectorSource
from holdfast.data.survey_dataset import facts_of
from holdfast.data.tokenizer import ModelTokenizer

_SHORTEST_LENGTH = 8
Writer = LabeledWriter | ConversationWriter | TextPieceWriter | TowerWriter
KEPT = 8  # preparations in the cache; runs have their own links, so they outlive what is removed here


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """How texts become tokens; None means what the model's files say."""

    max_length: int | None = None
    overlong: Literal["auto", "truncate", "window"] = "auto"  # for classify
    chat_template: str | None = None  # for causal, in place of the model's own
    query_prefix: str = ""  # for two-tower: what some models expect before a text
    passage_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A complete folder of prepared data."""

    folder: Path  # with `dropped.csv` where rows were dropped
    manifest: Manifest
    facts: DatasetFacts
    is_reused: bool  # it already existed, or was in the cache


def prepare(
    source: Source,
    tokens: ModelTokenizer | None,
    out: Path,
    *,
    options: PrepareOptions | None = None,
    cache: Path | None = None,
    on_progress: Progress = no_progress,
) -> Prepared:
    """Read a detected dataset once and prepare it in the folder `out`, or reuse what is there or in the cache."""
    options = options or PrepareOptions()
    if tokens is None and not isinstance(source, VectorSource):
        raise RequestError("texts cannot be prepared without a tokenizer", try_next=(set_to("model"),), setting="model")
    length = choose_length(source.layout.task, tokens, options)
    fingerprint = _fingerprint(source, tokens, options, length)
    if (found := _whole(out, fingerprint, source)) is not None:
        return found
    home = cache / fingerprint if cache else out
    is_reused = True
    if _whole(home, fingerprint, source) is None:
        is_reused = False
        build_whole(home, lambda draft: _write(source, tokens, options, length, fingerprint, draft, on_progress))
    if home != out:
        os.utime(home)  # marks it as used just now, for `forget_oldest`
        build_whole(out, lambda draft: link_files(home, draft))
        forget_oldest(home.parent)
    found = _whole(out, fingerprint, source)
    assert found is not None
    return replace(found, is_reused=is_reused)


def choose_length(task: Task, tokens: ModelTokenizer | None, options: PrepareOptions) -> Choice[int]:
    """How many tokens a text may have: as requested, at most the model's limit."""
    limit = tokens.limit if tokens else None
    requested = options.max_length
    if requested is not None and requested < _SHORTEST_LENGTH:
        raise RequestError(
            f"a max length of {requested} tokens is too short",
            found=f"the minimum is {_SHORTEST_LENGTH}",
            try_next=(set_to("max_length", _SHORTEST_LENGTH),),
            setting="max_length",
        )
    if requested is not None and limit is not None and requested > limit:
        raise RequestError(
            f"a max length of {requested:,} tokens is over the limit of the model",
            found=f"{limit:,} tokens, by the files in {tokens.folder if tokens else ''}",
            try_next=(set_to("max_length", limit),),
            setting="max_length",
        )
    if requested is not None:
        return Choice(requested, "as requested")
    usual = USUAL_LENGTH[task]
    if limit is not None and limit <= usual:
        return Choice(limit, "the limit of the model")
    return Choice(usual, f"usual for {task}" + (f"; the limit of the model is {limit:,}" if limit else ""))


def _write(
    source: Source,
    tokens: ModelTokenizer | None,
    options: PrepareOptions,
    length: Choice[int],
    fingerprint: str,
    draft: Path,
    on_progress: Progress,
) -> None:
    """Read the source once into the arrays of its task; then write its facts, and the manifest last."""
    prefixes = options.query_prefix, options.passage_prefix
    bad = BadRows(source.request.max_bad_share)
    if isinstance(source, VectorSource):
        findings, rows = source.check(bad, on_progress)
        manifest = write_vectors(source, rows, draft, on_progress)
    else:
        assert tokens is not None
        writer = _writer(source, tokens, options, length.value, draft)
        findings = source.read(writer, bad, on_progress)
        manifest = writer.manifest
    arrays = sorted(draft.glob("*.npy"))
    for path in arrays:
        sync(path)
    write_record(draft, facts_of(source, findings, bad))
    bad.write(draft / DROPPED)
    manifest = structs.replace(
        manifest,
        fingerprint=fingerprint,
        max_length=length.value if tokens else 0,
        tokenizer_sha256=tokens.fingerprint if tokens else "",
        prefixes=dict(zip(("query", "passage"), prefixes, strict=True)) if any(prefixes) else {},
        choices={**({"max_length": length} if tokens else {}), **manifest.choices},
        files={path.name: path.stat().st_size for path in arrays},
    )
    write_manifest(draft, manifest)


def _writer(source: Source, tokens: ModelTokenizer, options: PrepareOptions, length: int, draft: Path) -> Writer:
    layout = source.layout
    if layout.task == "classify":
        is_multi = layout.labels is not None and layout.labels.is_multi
        return LabeledWriter(tokens, length, options.overlong, is_multi, draft)
    if layout.task == "two-tower":
        return TowerWriter(source.request, tokens, length, (options.query_prefix, options.passage_prefix), draft)
    if layout.form == "text":
        return TextPieceWriter(tokens, length, draft)
    return ConversationWriter(tokens, length, Chat(tokens, options.chat_template), draft)


def _fingerprint(source: Source, tokens: ModelTokenizer | None, options: PrepareOptions, length: Choice[int]) -> str:
    """Of everything that decides what is written."""
    request = {
        name: value
        for name, value in asdict(source.request).items()
        if name not in ("path", "validation", "test", "negatives", "max_bad_share")
    }
    parts = {
        "format": FORMAT,
        "texts": LONGEST_SHOWN,
        "data": fingerprint_of(source.files),
        "roles": to_plain(source.layout.roles),
        "form": source.layout.form,
        "tokenizer": tokens.fingerprint if tokens else "",
        "template": tokens.own_chat_template if tokens else "",
        "options": asdict(options),
        "length": length.value,
        "request": to_plain(request),
        "negatives": look_at(source.request.negatives).sha256 if source.request.negatives else "",
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _whole(folder: Path, fingerprint: str, source: Source) -> Prepared | None:
    """The preparation in a folder, if it is complete and of this dataset."""
    manifest, facts = read_manifest(folder), read_record(folder, DatasetFacts)
    if not manifest or not facts or manifest.fingerprint != fingerprint:
        return None
    facts = replace(
        facts,
        files=tuple(str(file.path) for _, file in source.files),  # moved ones have new names
        # The keys of a JSON file are sorted by name; these have an order of their own.
        roles=source.layout.roles,
        splits={split: facts.splits[split] for split in SPLITS if split in facts.splits},
        labels={name: facts.labels[name] for name in in_order(facts.labels)},
    )
    return Prepared(folder=folder, manifest=manifest, facts=facts, is_reused=True)


def build_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder that appears whole or not at all: a draft next to it, renamed at the end."""
    draft = folder.with_name(f".{folder.name}.draft-{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clear_drafts(folder)
        draft.mkdir()
        write(draft)
        sync(draft)
        if folder.exists():
            _remove_prepared(folder)
        draft.rename(folder)
        sync(folder.parent)
    except OSError as error:
        if error.errno in FULL:
            raise MachineError(
                f"disk full: the prepared data does not fit in {folder.parent}",
                found=why_not(error, folder.parent),
                try_next=("free some space, or use a folder on another disk",),
                slug="disk-full",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise MachineError(f"cannot write to the folder {folder.parent}", found=str(error)) from error
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _clear_drafts(folder: Path) -> None:
    """Remove the drafts of killed preparations, but not of one that still runs."""
    for draft in folder.parent.glob(f".{folder.name}.draft-*"):
        pid = draft.name.rpartition("-")[2]
        if not (pid.isdigit() and is_alive(int(pid))) or int(pid) == os.getpid():
            shutil.rmtree(draft, ignore_errors=True)


def _remove_prepared(folder: Path) -> None:
    """Remove an older preparation; refuse if the folder has anything else in it."""
    ours = (MANIFEST, DATASET, DROPPED)
    strange = [path.name for path in folder.iterdir() if path.suffix != ".npy" and path.name not in ours]
    if strange:
        raise RequestError(
            f"{folder} has files that are not prepared data", found=", ".join(strange[:5]), try_next=("move them away",)
        )
    shutil.rmtree(folder)


def link_files(home: Path, draft: Path) -> None:
    """Link the files of the cache into a run's folder; copy them where links are not possible."""
    for path in sorted(home.iterdir(), key=lambda path: path.name == MANIFEST):  # the manifest last: it says "complete"
        try:
            os.link(path, draft / path.name)
        except OSError as error:
            if error.errno in FULL:
                raise
            shutil.copyfile(path, draft / path.name)


def forget_oldest(cache: Path) -> None:
    """Keep only the most recently used preparations."""
    entries = [path for path in cache.iterdir() if path.is_dir() and not path.name.startswith(".")]
    entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[KEPT:]:
        if (path / MANIFEST).is_file():
            shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Make sure that a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush_to_disk(descriptor)
    finally:
        os.close(descriptor)
