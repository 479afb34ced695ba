"""Uploads after their arrival: surveyed in a separate process, shown to users, and deleted when unused.

The survey writes its result into the dataset's folder; the next reader of the row copies it there (`settle`). A survey
whose process ended without a result is started again.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import transaction
from django.db.models import ProtectedError, Q

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import Problem, RequestError, error_record, invalid_settings
from holdfast.core.facts import TASKS
from holdfast.core.records import to_record
from holdfast.core.text import closest, plural
from holdfast.service.jobs.models import Dataset, DatasetState, Job, Shared
from holdfast.service.outbox import forget
from holdfast.service.survey_child import (
    SurveyJob,
    SurveyLimits,
    SurveyProgress,
    SurveyResult,
    UploadFacts,
    UploadPreview,
)
from holdfast.service.survey_watch import PLACE, is_watched, progress_of

Person = AbstractBaseUser | AnonymousUser
ENCODINGS = (
    "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1250", "cp1251", "cp1252", "latin-1", "iso-8859-2",
    "iso-8859-15", "mac-roman", "koi8-r", "shift_jis", "euc-jp", "euc-kr", "cp949", "gb18030", "big5",
)  # fmt: skip
DELIMITERS = (",", ";", "tab", "|", ":")
CHOICES: Mapping[str, str] = {
    "task": "task", "text_column": "columns", "label_column": "column", "group_column": "column",
    "encoding": "encoding", "delimiter": "delimiter", "header": "flag", "multi_label": "flag", "min_score": "number",
    "max_bad_rows": "share",
}  # fmt: skip
_START_AGAIN_SECONDS = 5.0
_begun: dict[str, float] = {}  # when this process last started a survey
_children: list["subprocess.Popen[bytes]"] = []


def clean_choices(given: Mapping[str, Any]) -> dict[str, Any]:
    """A user's choices about the data, checked; empty means automatic. All problems are reported at once."""
    kept: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in given.items():
        if name not in CHOICES:
            guess = closest(name, CHOICES)
            problems.append(
                Problem("", f"unknown choice {name[:60]!r}" + (f"; did you mean {guess}?" if guess else ""))
            )
        elif value not in (None, "", [], ()):
            try:
                kept[name] = _checked(CHOICES[name], value)
            except (ValueError, TypeError) as error:
                problems.append(Problem(name, str(error), str(value)[:60]))
    if problems:
        raise invalid_settings(problems)
    return dict(sorted(kept.items()))


def choose(dataset: Dataset, choices: Mapping[str, Any]) -> Dataset:
    """Set how the data is read, and survey it again, unless there is a survey of the same choices."""
    kept = clean_choices(choices)
    Dataset.objects.filter(pk=dataset.pk).update(choices=kept, state=DatasetState.SURVEYING, problem={}, facts={})
    dataset.refresh_from_db()
    start_survey(dataset)
    return settle(dataset)


def settle(dataset: Dataset) -> Dataset:
    """Copy the result of a finished survey into its row; start a lost survey again."""
    if dataset.state != DatasetState.SURVEYING:
        return dataset
    found = to_record(read_artifact(_place(dataset) / f"{_key(dataset)}.json"), SurveyResult)
    if not found and not dataset.path.is_file():
        found = SurveyResult(state="refused", problem=error_record(RequestError("the file no longer exists")))
    if found:
        # Only if the choices are still the same: a user may have changed them meanwhile.
        held = Dataset.objects.filter(pk=dataset.pk, state=DatasetState.SURVEYING, choices=dataset.choices)
        held.update(
            state=DatasetState.READY if found.state == "ready" else DatasetState.REFUSED,
            facts=found.facts,
            preview=found.preview,
            problem=found.problem,
        )
        dataset.refresh_from_db()
    elif _is_lost(dataset):
        start_survey(dataset)
    return dataset


def settle_all() -> int:
    """Settle every dataset that is being surveyed; return how many there were."""
    waiting = list(Dataset.objects.filter(state=DatasetState.SURVEYING))
    for dataset in waiting:
        settle(dataset)
    return len(waiting)


def start_survey(dataset: Dataset) -> None:
    """Start the survey in a separate process, which outlives this one."""
    place = _place(dataset)
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        write_artifact(place, f"{_key(dataset)}.job.json", _job(dataset))
    except OSError:
        return  # the folder is gone or cannot be written: settle reports it, or tries again
    _begun[_mark(dataset)] = time.monotonic()
    _children[:] = [child for child in _children if child.poll() is None]
    _children.append(begin(dataset.path.parent, _key(dataset)))


def begin(folder: Path, key: str) -> "subprocess.Popen[bytes]":
    """Start the process that supervises a survey."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.service.survey_watch", str(folder), key],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=folder.parent,
    )


def read_facts(dataset: Dataset) -> UploadFacts:
    """What the survey found; empty without a survey, or for one by a version that kept something else."""
    return to_record(dataset.facts, UploadFacts) or UploadFacts()


def read_preview(dataset: Dataset) -> UploadPreview:
    """The first rows of an upload; empty without a survey."""
    return to_record(dataset.preview, UploadPreview) or UploadPreview()


def progress(dataset: Dataset) -> SurveyProgress:
    """How far the survey is."""
    return progress_of(dataset.path.parent) or SurveyProgress(what="waiting for a free slot")


def twins(dataset: Dataset, user: Person) -> list[Dataset]:
    """The owner's other datasets with the same content that this user may see."""
    same = Dataset.objects.visible_to(user).filter(owner=dataset.owner_id, sha256=dataset.sha256).exclude(sha256="")
    return list(same.exclude(pk=dataset.pk).only("pk", "name", "file_name")[:3])


def remove(dataset: Dataset, user: Person) -> None:
    """Delete a dataset that no run uses, and its files."""
    folder, number, made = dataset.path.parent, dataset.pk, dataset.created
    beside = Q(request__validation=dataset.pk) | Q(request__test=dataset.pk) | Q(request__negatives=dataset.pk)
    using = Job.objects.filter(Q(dataset=dataset.pk) | beside)
    if using.exists():
        raise _in_use(dataset, using, user)
    gone = folder.with_name(f".gone-{uuid4().hex}")
    try:
        with transaction.atomic():
            dataset.delete()
            if folder.exists():
                folder.rename(gone)
    except ProtectedError as error:  # by a run submitted just now
        raise _in_use(dataset, using, user) from error
    shutil.rmtree(gone, ignore_errors=True)
    forget("datasets", number, made)


def _in_use(dataset: Dataset, using: Shared, user: Person) -> RequestError:
    names = list(using.visible_to(user).order_by("-pk").values_list("name", flat=True)[:3])
    return RequestError(
        f"{dataset.name} is used by {plural(using.count(), 'run')}",
        found=", ".join(names) or "by other people",
        try_next=("delete those runs first",),
    )


def _is_lost(dataset: Dataset) -> bool:
    begun = _begun.get(_mark(dataset))
    is_fresh = begun is not None and time.monotonic() - begun < _START_AGAIN_SECONDS
    return not is_fresh and not is_watched(dataset.path.parent)


def _job(dataset: Dataset) -> SurveyJob:
    limits = SurveyLimits(
        memory_bytes=settings.SURVEY_MEMORY_BYTES,
        seconds=settings.SURVEY_SECONDS,
        unpacked_bytes=settings.UNPACKED_BYTES,
        rows=settings.UPLOAD_ROWS,
    )
    return SurveyJob(path=str(dataset.path), choices=dataset.choices, limits=limits, owner=dataset.owner_id)


def _place(dataset: Dataset) -> Path:
    return dataset.path.parent / PLACE


def _key(dataset: Dataset) -> str:
    """A name for these choices, so that each set of them has its own result."""
    return hashlib.sha256(json.dumps(dataset.choices, sort_keys=True).encode()).hexdigest()[:16]


def _mark(dataset: Dataset) -> str:
    return f"{dataset.pk} {_key(dataset)}"


def _checked(kind: str, value: Any) -> Any:
    if kind == "columns":
        given = [value] if isinstance(value, str) else list(value)
        return [_text(one) for one in given][:50]
    if kind == "column":
        return _text(value)
    if kind == "flag":
        words = {"true": True, "yes": True, "false": False, "no": False}
        found = value if isinstance(value, bool) else words.get(str(value).lower())
        if found is None:
            raise ValueError("must be yes or no")
        return found
    if kind in ("number", "share"):
        low, high = (0.0, 1.0) if kind == "share" else (-1e9, 1e9)
        number = _number(value)
        if number is None or not low <= number <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return number
    allowed = {"task": TASKS, "encoding": ENCODINGS, "delimiter": DELIMITERS}[kind]
    if value not in allowed:
        guess = closest(str(value)[:60], allowed)
        hint = f"; did you mean {guess}?" if guess else ""
        raise ValueError(f"must be one of {', '.join(allowed)}{hint}")
    return value


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 300 or "\0" in value:
        raise ValueError("must be the name of a column")
    value.encode("utf-8")
    return value
