"""What is done with an upload after it has come: surveyed by a process of its own, read by people, deleted when unused.

The survey leaves its result in the dataset's folder; whoever looks at the row next copies it there (`settle`). A survey
whose process is gone without a result is begun again.
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
from holdfast.core.errors import RequestError, error_record
from holdfast.core.records import to_record
from holdfast.core.text import closest, plural
from holdfast.service.jobs.models import Dataset, DatasetState, Job, Shared
from holdfast.service.outbox import forget
from holdfast.service.survey_child import SurveyJob, SurveyLimits, SurveyProgress, SurveyResult
from holdfast.service.survey_watch import PLACE, is_watched, progress_of

Person = AbstractBaseUser | AnonymousUser
TASKS = ("classify", "causal", "two-tower")
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
_begun: dict[str, float] = {}  # when this process last began a survey
_children: list["subprocess.Popen[bytes]"] = []


def clean_choices(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a person decided about the data, checked; empty means: find out. All problems are told at once."""
    kept: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        if name not in CHOICES:
            guess = closest(name, CHOICES)
            problems.append(f"there is no choice {name[:60]!r}" + (f"; did you mean {guess}?" if guess else ""))
        elif value not in (None, "", [], ()):
            try:
                kept[name] = _checked(CHOICES[name], value)
            except (ValueError, TypeError) as error:
                problems.append(f"{name}: {error}")
    if problems:
        raise RequestError("the choices are invalid", seen="; ".join(problems))
    return dict(sorted(kept.items()))


def choose(dataset: Dataset, choices: Mapping[str, Any]) -> Dataset:
    """Decide how the data is to be read, and survey it again; a survey of the same choices is not made twice."""
    kept = clean_choices(choices)
    Dataset.objects.filter(pk=dataset.pk).update(choices=kept, state=DatasetState.SURVEYING, problem={}, facts={})
    dataset.refresh_from_db()
    start_survey(dataset)
    return settle(dataset)


def settle(dataset: Dataset) -> Dataset:
    """Copy the result of a survey into its row once it is there; begin the survey again where it was lost."""
    if dataset.state != DatasetState.SURVEYING:
        return dataset
    found = to_record(read_artifact(_place(dataset) / f"{_key(dataset)}.json"), SurveyResult)
    if not found and not dataset.path.is_file():
        found = SurveyResult(state="refused", problem=error_record(RequestError("the file no longer exists")))
    if found:
        # Only while these choices are asked for: a person may have made others meanwhile.
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
    """Settle every dataset that is being surveyed; gives how many there were."""
    waiting = list(Dataset.objects.filter(state=DatasetState.SURVEYING))
    for dataset in waiting:
        settle(dataset)
    return len(waiting)


def start_survey(dataset: Dataset) -> None:
    """Begin the survey in a process of its own, which outlives this one."""
    place = _place(dataset)
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        write_artifact(place, f"{_key(dataset)}.job.json", _job(dataset))
    except OSError:
        return  # the folder is gone or cannot be written: settle says so, or tries again
    _begun[_mark(dataset)] = time.monotonic()
    _children[:] = [child for child in _children if child.poll() is None]
    _children.append(begin(dataset.path.parent, _key(dataset)))


def begin(folder: Path, key: str) -> "subprocess.Popen[bytes]":
    """Start the process that watches over a survey."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.service.survey_watch", str(folder), key],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=folder.parent,
    )


def progress(dataset: Dataset) -> SurveyProgress:
    """How far the survey is."""
    return progress_of(dataset.path.parent) or SurveyProgress(what="waiting to be read")


def twins(dataset: Dataset, user: Person) -> list[Dataset]:
    """The owner's other datasets with the same content, as far as this person may see them."""
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
    except ProtectedError as error:  # by a run that came this moment
        raise _in_use(dataset, using, user) from error
    shutil.rmtree(gone, ignore_errors=True)
    forget("datasets", number, made)


def _in_use(dataset: Dataset, using: Shared, user: Person) -> RequestError:
    names = list(using.visible_to(user).order_by("-pk").values_list("name", flat=True)[:3])
    return RequestError(
        f"{dataset.name} is used by {plural(using.count(), 'run')}",
        seen=", ".join(names) or "of other people",
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
    return SurveyJob(path=str(dataset.path), choices=dataset.choices, limits=limits)


def _place(dataset: Dataset) -> Path:
    return dataset.path.parent / PLACE


def _key(dataset: Dataset) -> str:
    """A name for these choices, so that each set of them has a result of its own."""
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
            raise ValueError(f"expected yes or no, not {str(value)[:40]!r}")
        return found
    if kind in ("number", "share"):
        low, high = (0.0, 1.0) if kind == "share" else (-1e9, 1e9)
        number = float(value)
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}, not {str(value)[:40]}")
        return number
    allowed = {"task": TASKS, "encoding": ENCODINGS, "delimiter": DELIMITERS}[kind]
    if value not in allowed:
        guess = closest(str(value)[:60], allowed)
        hint = f"; did you mean {guess}?" if guess else ""
        raise ValueError(f"{str(value)[:40]!r} is not one of {', '.join(allowed)}{hint}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 300 or "\0" in value:
        raise ValueError("expected the name of a column")
    value.encode("utf-8")
    return value
