"""Notifications of finished runs and of trouble: files a notice for each hook, sends what is due, and retries.

A notice is sent at least once; its number in the header lets the receiver ignore a second copy. Several processes may
send: each notice is claimed by a conditional update before anything is sent.
"""

import secrets
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.mail import send_mail
from django.core.validators import validate_email
from django.utils import timezone

from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.runs.wording import clean, scores_text
from holdfast.service.jobs.limits import count_test
from holdfast.service.jobs.models import Hook, HookKind, Job, JobState, Notice
from holdfast.service.jobs.secrets import without_secrets
from holdfast.service.jobs.webhooks import Delivery, check_address, deliver

FINISH = "finished"  # every other event is trouble
WAITS_SECONDS = (
    10,
    60,
    300,
    1800,
    7200,
    21_600,
)  # after each failed try; then the notice is dropped
MOST_TRIES = len(WAITS_SECONDS) + 1
_MOST_HOOKS = 20
_SENDING_SECONDS = 60  # after which another sender may try, if this one died


def make_hook(owner: User, kind: str, target: str, *, on_finish: bool = True, on_trouble: bool = True) -> Hook:
    """Add a webhook or an email address of a user; a webhook gets a key that signs its messages."""
    target = target.strip()
    if kind not in HookKind.values:
        raise invalid_settings([Problem("kind", f"unknown; allowed: {', '.join(HookKind.values)}", repr(kind[:20]))])
    if Hook.objects.filter(owner=owner).count() >= _MOST_HOOKS:
        raise RequestError(f"you already have {_MOST_HOOKS} hooks, the maximum")
    if kind == HookKind.EMAIL:
        try:
            validate_email(target)
        except ValidationError:
            raise invalid_settings([Problem("target", "not a valid email address", repr(target[:100]))]) from None
    else:
        check_address(target)
    key = secrets.token_hex(32) if kind == HookKind.WEBHOOK else ""
    return Hook.objects.create(
        owner=owner, kind=kind, target=target, on_finish=on_finish, on_trouble=on_trouble, key=key
    )


def file_notices(job: Job, event: str, text: str = "") -> int:
    """File a notice of an event for the job's owner, with a text of its own or the job's; twice is as good as once."""
    wanted = {"on_finish": True} if event == FINISH else {"on_trouble": True}
    occasion = f"{event}, attempt {job.attempts}, queued at {job.queued.isoformat()}"
    filed = 0
    for hook in Hook.objects.filter(owner=job.owner_id, **wanted):
        if not Notice.objects.filter(hook=hook, job=job, event=event, body__occasion=occasion).exists():
            Notice.objects.create(hook=hook, job=job, event=event, body=_body(job, event, occasion, text))
            filed += 1
    return filed


def send_due(most: int = 20) -> int:
    """Send the notices that are due; return how many were delivered. Each failure can take seconds."""
    due = Notice.objects.filter(sent=None, tries__lt=MOST_TRIES, next_try__lte=timezone.now())
    sent = 0
    for notice in due.select_related("hook").order_by("next_try")[:most]:
        if _take(notice):
            sent += _send(notice)
    return sent


def send_test(hook: Hook) -> Delivery:
    """Send a test message now; only so many are allowed within a while."""
    count_test(hook.owner)
    job = Job(pk=0, owner=hook.owner, name="Test", state=JobState.FINISHED, sentence="This is a test message.")
    return _deliver(hook, "test", 0, _body(job, "test", "test"))


def _deliver(hook: Hook, event: str, number: int, body: dict[str, Any]) -> Delivery:
    if hook.kind == HookKind.EMAIL:
        return _mail(hook, event, body)
    return deliver(hook, event, number, body)


def _take(notice: Notice) -> bool:
    soon = timezone.now() + timedelta(seconds=_SENDING_SECONDS)
    mine = Notice.objects.filter(pk=notice.pk, tries=notice.tries, sent=None, next_try=notice.next_try)
    return mine.update(tries=notice.tries + 1, next_try=soon) == 1


def _send(notice: Notice) -> bool:
    tries = notice.tries + 1
    delivery = _deliver(notice.hook, notice.event, notice.pk, notice.body)
    changes: dict[str, Any] = {"said": clean(delivery.said, 280)}
    if delivery.arrived:
        changes["sent"] = timezone.now()
    elif tries < MOST_TRIES:
        changes["next_try"] = timezone.now() + timedelta(seconds=WAITS_SECONDS[tries - 1])
    Notice.objects.filter(pk=notice.pk).update(**changes)
    return delivery.arrived


def _body(job: Job, event: str, occasion: str, text: str = "") -> dict[str, Any]:
    """The message: enough to know what happened, and nothing of the data."""
    about = {
        "id": job.pk,
        "name": job.name,
        "state": job.state,
        "task": job.task,
        "step": job.step,
        "steps": job.steps,
        "attempts": job.attempts,
        "metrics": job.metrics,
        "sentence": without_secrets(text or job.sentence),
    }
    url = f"{settings.PUBLIC_URL}/runs/{job.pk}" if job.pk else f"{settings.PUBLIC_URL}/"
    return {"event": event, "occasion": occasion, "at": timezone.now().isoformat(), "run": about, "url": url}


def _mail(hook: Hook, event: str, body: dict[str, Any]) -> Delivery:
    run = body["run"]
    subject = clean(f"{run['name']}: {_WORDS.get(event, event)}", 150)
    split = next((one for one in ("test", "validation") if run["metrics"].get(one)), "")
    scores = f"{split}: {scores_text(run['metrics'][split])}" if split else ""
    steps = f"step {run['step']:,} of {run['steps']:,}" if run["steps"] else ""
    lines = [clean(run["sentence"], 600), scores, steps, body["url"]]
    try:
        send_mail(subject, "\n".join(line for line in lines if line), None, [hook.target])
    except (OSError, ValueError) as error:  # smtplib's errors are among them
        return Delivery(False, f"{type(error).__name__}: {error}")
    return Delivery(True, "accepted by the mail server")


_WORDS = {
    "finished": "run finished",
    "failed": "run failed",
    "trouble": "an attempt failed; the run continues",
    "test": "test message",
}
