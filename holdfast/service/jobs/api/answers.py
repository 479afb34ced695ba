"""What comes out of the API."""

from datetime import datetime
from typing import Any

from ninja import Schema

from holdfast.service.jobs.api.shapes import Json


class JobAnswer(Schema):
    """A run as lists show it."""

    id: int
    name: str
    owner: str
    team: str | None
    dataset: int | None
    parent: int | None
    model: int | None
    settings: Json
    goal: str
    device: str
    priority: int
    state: str
    stop_asked: bool
    created: datetime
    queued: datetime
    started: datetime | None
    ended: datetime | None
    worker: str | None
    silent_since: datetime | None  # when its worker was last heard of, where that is too long ago
    task: str
    phase: str
    step: int
    steps: int
    loss: float | None
    eta_seconds: float | None
    attempts: int
    metrics: Json
    sentence: str
    error: Json | None


class Live(Schema):
    """What only the run folder knows, while it runs."""

    phase: str
    step: int
    steps: int
    loss: float | None
    eta_seconds: float | None
    steps_per_second: float | None
    resident_bytes: int | None
    doing: str


class JobDetails(JobAnswer):
    """A run with what it does now."""

    live: Live | None


class JobPage(Schema):
    """Some runs, the newest first; `next` is the cursor of the page after."""

    items: list[JobAnswer]
    next: int | None


class AttemptAnswer(Schema):
    """One attempt: what it changed, how it ended, and why."""

    number: int
    rung: str
    because: str
    changes: Json
    outcome: str
    sentence: str
    slug: str | None
    confidence: str
    noticed_after_seconds: float | None
    step_reached: int
    started: float | None
    seconds: float | None
    remedies: list[str]
    proof: list[Json]
    files: list[str]


class AttemptsAnswer(Schema):
    """All attempts of a run."""

    items: list[AttemptAnswer]


class LogAnswer(Schema):
    """The end of what an attempt printed."""

    attempt: int
    text: str


class EventsAnswer(Schema):
    """Events in their order; ask again with `since` = `next`."""

    items: list[Json]
    next: int


class MetricsAnswer(Schema):
    """The curves and the final figures."""

    losses: list[list[float]]  # step and loss
    evaluations: dict[str, dict[str, float]]
    metrics: Json


class CompareAnswer(Schema):
    """Runs side by side: settings that differ and figures, in the order of the runs."""

    items: list[JobAnswer]
    settings: dict[str, list[Any]]
    metrics: dict[str, list[float | None]]


class DatasetAnswer(Schema):
    """An upload."""

    id: int
    name: str
    owner: str
    team: str | None
    file_name: str
    size_bytes: int
    sha256: str
    state: str
    choices: Json
    problem: Json | None
    created: datetime


class DatasetPage(Schema):
    """Some datasets, the newest first."""

    items: list[DatasetAnswer]
    next: int | None


class SurveyAnswer(Schema):
    """What was found in a dataset."""

    state: str
    facts: Json
    preview: Json
    problem: Json | None


class ModelAnswer(Schema):
    """A finished model."""

    id: int
    name: str
    version: int
    owner: str
    team: str | None
    job: int
    stage: str
    task: str
    base: str
    metrics: Json
    size_bytes: int
    created: datetime


class ModelPage(Schema):
    """Some models, the newest first."""

    items: list[ModelAnswer]
    next: int | None


class PredictAnswer(Schema):
    """What the model says to each text, in order."""

    items: list[Json]


class WorkerAnswer(Schema):
    """A machine that takes jobs, and what doctor found there."""

    name: str
    host: str
    slots: int
    devices: list[str]
    version: str
    started: datetime
    beat: datetime
    is_there: bool
    running: int
    checked: datetime | None
    findings: list[Json]


class WorkersAnswer(Schema):
    """All machines."""

    items: list[WorkerAnswer]


class TokenAnswer(Schema):
    """A token without its text."""

    id: int
    name: str
    prefix: str
    may_write: bool
    created: datetime
    expires: datetime | None
    used: datetime | None


class NewToken(TokenAnswer):
    """A token with its text, which is shown this once."""

    token: str


class TokensAnswer(Schema):
    """A person's tokens."""

    items: list[TokenAnswer]


class SecretAnswer(Schema):
    """That a secret is there; its value is never given."""

    name: str
    created: datetime


class SecretsAnswer(Schema):
    """A person's secrets by name."""

    items: list[SecretAnswer]


class HookAnswer(Schema):
    """A hook without its key."""

    id: int
    kind: str
    target: str
    on_finish: bool
    on_trouble: bool
    created: datetime


class NewHook(HookAnswer):
    """A hook with the key that signs its messages, which is shown this once."""

    key: str


class HooksAnswer(Schema):
    """A person's hooks."""

    items: list[HookAnswer]


class TestAnswer(Schema):
    """Whether a test got through, and what the other side said."""

    arrived: bool
    said: str


class MeAnswer(Schema):
    """Who asks, and with what."""

    name: str
    is_admin: bool
    teams: list[str]
    token: str | None
    may_write: bool
