"""Schemas of the API: what goes in (`...In`) and what comes out (`...Out`)."""

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import AfterValidator, ConfigDict, Field

from holdfast.core.setting_values import settings_schema
from holdfast.service.jobs.api.strict_json import is_storable

Json = dict[str, Any]
Id = Annotated[int, Field(ge=1, le=2**63 - 1)]


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("it contains invalid characters")
    return text


Text = Annotated[str, AfterValidator(_storable), Field(max_length=200)]
LongText = Annotated[str, AfterValidator(_storable), Field(max_length=20_000)]
State = Literal["queued", "running", "planned", "finished", "failed", "stopped"]
Goal = Literal["plan", "model"]
Cursor = Annotated[int | None, Field(ge=1, le=2**63 - 1, description="`next` from the previous page.")]
Limit = Annotated[int, Field(ge=1, le=200)]


class Payload(Schema):
    """The body of a request. Unknown fields are refused, so that a typo is not ignored."""

    model_config = ConfigDict(extra="forbid")


class UploadIn(Payload):
    """An upload; its name is that of the file by default."""

    name: Text = ""
    team: Text = ""


class SubmitIn(Payload):
    """A run to submit. `settings` are those of `holdfast train`, without paths."""

    dataset: Id | None = None
    from_model: Id | None = None
    validation: Id | None = None
    test: Id | None = None
    negatives: Id | None = None
    settings: Json = Field(default_factory=dict, json_schema_extra={"properties": settings_schema()})
    name: Text = ""
    goal: Goal = "plan"
    team: Text | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] = 0


class RetryIn(Payload):
    """Changes for a retry: null removes a value, also in `settings`; what is left out stays the same."""

    validation: Id | None = None
    test: Id | None = None
    negatives: Id | None = None
    settings: Json = Field(default_factory=dict, json_schema_extra={"properties": settings_schema()})
    name: Text = ""
    goal: Goal | None = None


class ChoicesIn(Payload):
    """How to read a dataset; what is left out is detected."""

    choices: Json


class NameIn(Payload):
    """A new name."""

    name: Text


class TextsIn(Payload):
    """Texts for a model."""

    texts: Annotated[list[LongText], Field(min_length=1, max_length=32)]


class TokenIn(Payload):
    """A token to create."""

    name: Text
    scope: Literal["read", "predict", "submit", "admin"] = "submit"
    days: Annotated[int | None, Field(ge=1, le=3650)] = None


class SecretIn(Payload):
    """A secret to save."""

    name: Text
    value: LongText


class HookIn(Payload):
    """A hook to add: a webhook or an email address."""

    kind: Literal["webhook", "email"]
    target: Annotated[str, AfterValidator(_storable), Field(max_length=500)]
    on_finish: bool = True
    on_trouble: bool = True


class JobOut(Schema):
    """A job as lists show it."""

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
    silent_since: datetime | None  # when its worker last reported, if that is too long ago
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


class QueueOut(Schema):
    """The place of a waiting job: how many start before it, and when it may start, if that is known."""

    ahead: int
    starts_in_seconds: float | None


class JobDetailsOut(JobOut):
    """A job with the state of its run: attempts, causes and evidence as values; or its place in the queue."""

    run: Json | None
    queue: QueueOut | None


class JobsOut(Schema):
    """One page of jobs, newest first; `next` is the cursor of the next page."""

    items: list[JobOut]
    next: int | None


class AttemptsOut(Schema):
    """All attempts of a run: what each changed, how it ended, why in one `sentence`, and the `files` of evidence."""

    items: list[Json]


class LogOut(Schema):
    """The end of the output of an attempt."""

    attempt: int
    text: str


class EventsOut(Schema):
    """Events in order; for later ones set `since` to `next`."""

    items: list[Json]
    next: int


class MetricsOut(Schema):
    """The loss curve, each evaluation and the final metrics."""

    losses: list[list[float]]  # step and loss
    evaluations: dict[str, dict[str, float]]
    metrics: Json


class CompareOut(Schema):
    """Runs side by side: settings that differ and metrics, in the order of the runs."""

    items: list[JobOut]
    settings: dict[str, list[Any]]
    metrics: dict[str, list[float | None]]


class DatasetOut(Schema):
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


class DatasetsOut(Schema):
    """One page of datasets, newest first."""

    items: list[DatasetOut]
    next: int | None


class SurveyOut(Schema):
    """The survey of a dataset."""

    state: str
    facts: Json
    preview: Json
    problem: Json | None


class ModelOut(Schema):
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


class ModelsOut(Schema):
    """One page of models, newest first."""

    items: list[ModelOut]
    next: int | None


class PredictOut(Schema):
    """The answer to each text, in order."""

    items: list[Json]


class WorkerOut(Schema):
    """A machine that takes jobs, and the findings of its checkup."""

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


class WorkersOut(Schema):
    """All machines."""

    items: list[WorkerOut]


class TokenOut(Schema):
    """A token without its text."""

    id: int
    name: str
    prefix: str
    scope: str
    created: datetime
    expires: datetime | None
    used: datetime | None


class NewTokenOut(TokenOut):
    """A new token with its text, which is shown only once."""

    token: str


class TokensOut(Schema):
    """The user's tokens."""

    items: list[TokenOut]


class SecretOut(Schema):
    """A secret without its value, which is never shown."""

    name: str
    created: datetime


class SecretsOut(Schema):
    """The user's secrets by name."""

    items: list[SecretOut]


class HookOut(Schema):
    """A hook without its key."""

    id: int
    kind: str
    target: str
    on_finish: bool
    on_trouble: bool
    created: datetime


class NewHookOut(HookOut):
    """A new hook with the key that signs its messages, which is shown only once."""

    key: str


class HooksOut(Schema):
    """The user's hooks."""

    items: list[HookOut]


class HookTestOut(Schema):
    """Whether a test message was delivered, and the response."""

    arrived: bool
    said: str


class MeOut(Schema):
    """The user, and the token in use."""

    name: str
    is_admin: bool
    teams: list[str]
    token: str | None
    scope: str
