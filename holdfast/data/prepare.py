"""Tokenizes a surveyed dataset once and writes it as memory-mapped arrays, described in `shards`.

Reads: the dataset, the tokenizer. Writes: a folder with `manifest.json` last. Everything goes to a draft folder that is
renamed when it is complete, so a preparation that was killed leaves nothing that looks finished.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from msgspec import structs

from holdfast.core.artifacts import to_plain
from holdfast.core.disk_space import FULL, why_not
from holdfast.core.errors import MachineError, RequestError, set_to
from holdfast.core.plan import USUAL_LENGTH, Choice
from holdfast.core.prepared import FORMAT, Manifest
from holdfast.core.progress import Progress, no_progress
from holdfast.core.runfolder import MANIFEST
from holdfast.data.prepare_causal import prepare_causal
from holdfast.data.prepare_classify import prepare_classify
from holdfast.data.prepare_two_tower import TowerWriter, prepare_beir, prepare_pairs, prepare_passages, prepare_vectors
from holdfast.data.rawfile import look_at
from holdfast.data.shards import LONGEST_SHOWN, read_manifest, write_manifest
from holdfast.data.survey_beir import BeirSurvey
from holdfast.data.survey_dataset import Survey
from holdfast.data.survey_vectors import VectorSurvey
from holdfast.data.tokenizer import ModelTokenizer

_SHORTEST_LENGTH = 8
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

    folder: Path
    manifest: Manifest
    is_reused: bool  # it already existed, or was in the cache


def prepare(
    survey: Survey,
    tokens: ModelTokenizer | None,
    out: Path,
    *,
    options: PrepareOptions | None = None,
    cache: Path | None = None,
    on_progress: Progress = no_progress,
) -> Prepared:
    """Prepare a surveyed dataset in the folder `out`, or reuse what is there or in the cache."""
    options = options or PrepareOptions()
    if tokens is None and not isinstance(survey, VectorSurvey):
        raise RequestError("texts cannot be prepared without a tokenizer", try_next=(set_to("model"),), setting="model")
    length = choose_length(survey, tokens, options)
    fingerprint = _fingerprint(survey, tokens, options, length)
    if (manifest := _whole(out, fingerprint)) is not None:
        return Prepared(folder=out, manifest=manifest, is_reused=True)
    home = cache / fingerprint if cache else out
    is_reused = True
    if _whole(home, fingerprint) is None:
        is_reused = False
        build_whole(home, lambda draft: _write(survey, tokens, options, length, fingerprint, draft, on_progress))
    if home != out:
        os.utime(home)  # marks it as used just now, for `forget_oldest`
        build_whole(out, lambda draft: link_files(home, draft))
        forget_oldest(home.parent)
    manifest = _whole(out, fingerprint)
    assert manifest is not None
    return Prepared(folder=out, manifest=manifest, is_reused=is_reused)


def choose_length(survey: Survey, tokens: ModelTokenizer | None, options: PrepareOptions) -> Choice[int]:
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
    usual = USUAL_LENGTH[survey.facts.task]
    if limit is not None and limit <= usual:
        return Choice(limit, "the limit of the model")
    return Choice(usual, f"usual for {survey.facts.task}" + (f"; the limit of the model is {limit:,}" if limit else ""))


def _write(
    survey: Survey,
    tokens: ModelTokenizer | None,
    options: PrepareOptions,
    length: Choice[int],
    fingerprint: str,
    draft: Path,
    on_progress: Progress,
) -> None:
    """Write the arrays of the survey's task, then the manifest."""
    prefixes = options.query_prefix, options.passage_prefix
    if isinstance(survey, VectorSurvey):
        found = prepare_vectors(survey, draft, on_progress)
    else:
        assert tokens is not None
        writer = TowerWriter(tokens, length.value, prefixes, draft, on_progress)
        if isinstance(survey, BeirSurvey):
            found = prepare_beir(survey, writer)
        elif survey.facts.task == "classify":
            found = prepare_classify(survey, tokens, length.value, options.overlong, draft, on_progress)
        elif survey.facts.task == "causal":
            found = prepare_causal(survey, tokens, length.value, options.chat_template, draft, on_progress)
        elif survey.layout.form == "passages of articles":
            found = prepare_passages(survey, writer)
        else:
            found = prepare_pairs(survey, writer)
    arrays = sorted(draft.glob("*.npy"))
    for path in arrays:
        sync(path)
    manifest = structs.replace(
        found,
        fingerprint=fingerprint,
        max_length=length.value if tokens else 0,
        tokenizer_sha256=tokens.fingerprint if tokens else "",
        prefixes=dict(zip(("query", "passage"), prefixes, strict=True)) if any(prefixes) else {},
        choices={**({"max_length": length} if tokens else {}), **found.choices},
        files={path.name: path.stat().st_size for path in arrays},
    )
    write_manifest(draft, manifest)


def _fingerprint(survey: Survey, tokens: ModelTokenizer | None, options: PrepareOptions, length: Choice[int]) -> str:
    """Of everything that decides what is written."""
    request = {
        name: value
        for name, value in asdict(survey.request).items()
        if name not in ("path", "validation", "test", "negatives", "max_bad_share")
    }
    parts = {
        "format": FORMAT,
        "texts": LONGEST_SHOWN,
        "data": survey.facts.fingerprint,
        "roles": to_plain(survey.facts.roles),
        "form": survey.facts.form,
        "tokenizer": tokens.fingerprint if tokens else "",
        "template": tokens.own_chat_template if tokens else "",
        "options": asdict(options),
        "length": length.value,
        "request": to_plain(request),
        "negatives": look_at(survey.request.negatives).sha256 if survey.request.negatives else "",
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _whole(folder: Path, fingerprint: str) -> Manifest | None:
    manifest = read_manifest(folder)
    return manifest if manifest and manifest.fingerprint == fingerprint else None


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
        if not (pid.isdigit() and _is_alive(int(pid))) or int(pid) == os.getpid():
            shutil.rmtree(draft, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove_prepared(folder: Path) -> None:
    """Remove an older preparation; refuse if the folder has anything else in it."""
    strange = [path.name for path in folder.iterdir() if path.suffix != ".npy" and path.name != MANIFEST]
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
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
