"""The tables. A job's row says who submitted it, who holds it and where its folder is; the folder is the truth.

A team is a Django group. Every query for a user starts with `visible_to`.
"""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group
from django.db import models
from django.db.models import Q
from django.utils import timezone

from holdfast.service.home import this_home


class Shared(models.QuerySet[Any]):
    """Rows that belong to a user, and may be shared with a team."""

    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> "Shared":
        """What this user may see: their own rows, those of their teams, and for an administrator everything."""
        if not user.is_authenticated:
            return self.none()
        if getattr(user, "is_superuser", False):
            return self
        return self.filter(Q(owner=user) | Q(team__in=user.groups.all()))  # type: ignore[attr-defined]  # ours have groups


class Worker(models.Model):
    """A machine that takes jobs: its last heartbeat and its checkup."""

    name = models.CharField(max_length=200, unique=True)
    host = models.CharField(max_length=200)
    slots = models.PositiveIntegerField(default=1)
    devices = models.JSONField(default=list)  # "cpu", "cuda", "mps"
    version = models.CharField(max_length=40, default="")
    started = models.DateTimeField(default=timezone.now)
    beat = models.DateTimeField(default=timezone.now, db_index=True)
    checkup = models.JSONField(default=dict)  # what `holdfast doctor --json` printed
    checked = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name


class DatasetState(models.TextChoices):
    """The state of an upload."""

    SURVEYING = "surveying"
    READY = "ready"
    REFUSED = "refused"


class Dataset(models.Model):
    """An upload and its survey."""

    objects = Shared.as_manager()
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="datasets")
    team = models.ForeignKey(Group, null=True, blank=True, on_delete=models.SET_NULL)
    name = models.CharField(max_length=200)
    file_name = models.CharField(max_length=120)  # sanitized; the folder is named by the row's id
    size_bytes = models.BigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, default="")
    state = models.CharField(max_length=20, choices=DatasetState.choices, default=DatasetState.SURVEYING, db_index=True)
    choices = models.JSONField(default=dict)  # set by a user: task, columns, encoding
    facts = models.JSONField(default=dict)  # what `holdfast survey --json` printed
    preview = models.JSONField(default=dict)  # {"columns": [...], "rows": [[...], ...]}
    problem = models.JSONField(default=dict)  # why it was refused, as `error_record` wrote it
    created = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> Path:
        """The uploaded file."""
        return this_home().datasets / str(self.pk) / self.file_name


class JobState(models.TextChoices):
    """The state of a job. Only `queued` jobs are claimed, and only `running` jobs are held."""

    QUEUED = "queued"
    RUNNING = "running"
    PLANNED = "planned"  # plan and forecast are ready; a user must start it
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class JobGoal(models.TextChoices):
    """How far to run a job."""

    PLAN = "plan"
    MODEL = "model"


class Job(models.Model):
    """One training run as it was requested."""

    objects = Shared.as_manager()
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs")
    team = models.ForeignKey(Group, null=True, blank=True, on_delete=models.SET_NULL)
    name = models.CharField(max_length=200)
    dataset = models.ForeignKey(Dataset, null=True, blank=True, on_delete=models.PROTECT, related_name="jobs")
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="retries")
    request = models.JSONField(default=dict)  # settings of a TrainRequest; paths are added when it is claimed
    goal = models.CharField(max_length=10, choices=JobGoal.choices, default=JobGoal.MODEL)
    device = models.CharField(max_length=10, default="", blank=True)  # that a worker must have; empty: any
    priority = models.IntegerField(default=0)

    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    stop_asked = models.BooleanField(default=False)
    created = models.DateTimeField(default=timezone.now)
    queued = models.DateTimeField(default=timezone.now)
    started = models.DateTimeField(null=True, blank=True)
    ended = models.DateTimeField(null=True, blank=True)

    # Who holds it. `claim` is new at every claim, so that a holder that lost its lease can no longer write.
    worker = models.ForeignKey(Worker, null=True, blank=True, on_delete=models.SET_NULL, related_name="jobs")
    claim = models.UUIDField(null=True, blank=True)
    claims = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)

    # What lists show, copied from the run folder at every renewal of the lease.
    task = models.CharField(max_length=20, default="", blank=True)
    phase = models.CharField(max_length=40, default="", blank=True)
    step = models.BigIntegerField(default=0)
    steps = models.BigIntegerField(default=0)
    loss = models.FloatField(null=True, blank=True)
    eta_seconds = models.FloatField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    metrics = models.JSONField(default=dict)
    sentence = models.TextField(default="", blank=True)  # how it ended
    error = models.JSONField(default=dict)  # why the request was refused, as `error_record` wrote it

    class Meta:
        indexes = (
            models.Index(fields=("state", "-priority", "queued"), name="job_next"),
            models.Index(fields=("state", "lease_until"), name="job_leases"),
            models.Index(fields=("owner", "-created"), name="job_owner"),
            models.Index(fields=("-created",), name="job_newest"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def folder(self) -> Path:
        """The run folder."""
        return this_home().runs / str(self.pk)

    @property
    def has_reached_time_limit(self) -> bool:
        """Whether it was stopped because it had trained for RUN_HOURS."""
        if self.state != JobState.STOPPED or not self.started or not self.ended or not settings.RUN_HOURS:
            return False
        return self.ended - self.started >= timedelta(hours=settings.RUN_HOURS)

    @property
    def silent_since(self) -> datetime | None:
        """When the holder last renewed, if that is too long ago; by the database's clock."""
        if self.state != JobState.RUNNING or not self.lease_until:
            return None
        heard = self.lease_until - timedelta(seconds=settings.LEASE_SECONDS)
        return heard if timezone.now() - heard > timedelta(seconds=settings.LEASE_SECONDS / 4) else None


class ModelStage(models.TextChoices):
    """Whether this is the version to use."""

    CANDIDATE = "candidate"
    PROMOTED = "promoted"


class TrainedModel(models.Model):
    """A finished model in the registry; its files are in the run folder of its job."""

    objects = Shared.as_manager()
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="trained_models")
    team = models.ForeignKey(Group, null=True, blank=True, on_delete=models.SET_NULL)
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="trained_model")
    name = models.CharField(max_length=200)
    version = models.PositiveIntegerField(default=1)
    stage = models.CharField(max_length=10, choices=ModelStage.choices, default=ModelStage.CANDIDATE)
    task = models.CharField(max_length=20)
    base = models.CharField(max_length=200, default="")
    metrics = models.JSONField(default=dict)
    size_bytes = models.BigIntegerField(default=0)
    created = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("owner", "name", "version"), name="model_version"),)

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class TokenScope(models.TextChoices):
    """What a token may do; each scope includes those before it."""

    READ = "read", "read only"
    PREDICT = "predict", "read, and ask models"
    SUBMIT = "submit", "submit and change runs, data and models"
    ADMIN = "admin", "everything, also tokens, secrets and hooks"


class ApiToken(models.Model):
    """An API token. Only its hash is stored."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, unique=True)
    sha256 = models.CharField(max_length=64)
    scope = models.CharField(max_length=10, choices=TokenScope.choices, default=TokenScope.SUBMIT)
    # The token that created this one: revoking a token also revokes what it created.
    maker = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="created_tokens")
    created = models.DateTimeField(default=timezone.now)
    expires = models.DateTimeField(null=True, blank=True)
    used = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def allows(self, scope: str) -> bool:
        """Whether this token may do what needs a scope."""
        return TokenScope.values.index(self.scope) >= TokenScope.values.index(scope)


class Secret(models.Model):
    """An environment variable that runs need and nobody may read, such as a hub token; encrypted at rest."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="secrets")
    name = models.CharField(max_length=60)  # of the environment variable
    sealed = models.BinaryField()
    created = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("owner", "name"), name="secret_name"),)

    def __str__(self) -> str:
        return self.name


class HookKind(models.TextChoices):
    """The kind of a hook."""

    WEBHOOK = "webhook"
    EMAIL = "email"


class Hook(models.Model):
    """Where a user is notified of finished runs or of trouble: a web address or an email address."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="hooks")
    kind = models.CharField(max_length=10, choices=HookKind.choices)
    target = models.CharField(max_length=500)
    on_finish = models.BooleanField(default=True)
    on_trouble = models.BooleanField(default=True)
    key = models.CharField(max_length=64, default="", blank=True)  # signs the body of a webhook
    created = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class Notice(models.Model):
    """One message to one hook, kept until it is delivered or dropped."""

    hook = models.ForeignKey(Hook, on_delete=models.CASCADE, related_name="notices")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="notices")
    event = models.CharField(max_length=20)  # "finished", "failed", "trouble"
    body = models.JSONField(default=dict)
    tries = models.PositiveIntegerField(default=0)
    next_try = models.DateTimeField(default=timezone.now, db_index=True)
    sent = models.DateTimeField(null=True, blank=True)
    said = models.CharField(max_length=300, default="", blank=True)  # the last response of the receiver

    def __str__(self) -> str:
        return f"{self.event} of {self.job_id} to {self.hook_id}"


class OneTimeLink(models.Model):
    """A link that logs its owner in once: for the first user, or after a forgotten password."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    sha256 = models.CharField(max_length=64, unique=True)
    expires = models.DateTimeField()

    def __str__(self) -> str:
        return f"link for {self.owner_id}"


class LoginFailure(models.Model):
    """A failed login, kept as long as it delays the next attempt."""

    key = models.CharField(max_length=64, db_index=True)  # hash of what is limited: a name, an address
    at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return self.key
