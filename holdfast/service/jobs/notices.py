"""Tells people of a finish or of trouble: files a notice for each of their hooks, sends what is due, tries again.

A notice is sent at least once; its number in the header lets the other side pass over a second copy. Several processes
may send: a notice is taken by a conditional update before anything leaves.
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

from holdfast.core.errors import RequestError
from holdfast.runs.report.headline import metric_name
from holdfast.runs.wording import clean
from holdfast.service.jobs.limits import count_test
from holdfast.service.jobs.models import Hook, HookKind, Job, JobState, Notice
from holdfast.service.jobs.webhooks import Delivery, check_address, deliver

FINISH = "finished"  # every other event is trouble
WAITS_SECONDS = (10, 60, 300, 1800, 7200, 21_600)  # after the first try, the second, ...; then it is given up
MOST_TRIES = len(WAITS_SECONDS) + 1
_MOST_HOOKS = 20
_SENDING_SECONDS = 60  # a sender that died is followed after this


def make_hook(owner: User, kind: str, target: str, *, on_finish: bool = True, on_trouble: bool = True) -> Hook:
    """Remember where somebody wants to hear of their runs; a webhook gets a key that signs what is sent."""
    target = target.strip()
    if kind not in HookKind.values:
        raise RequestError("the hook cannot be used", seen=f"kind {kind[:20]!r}; allowed: {', '.join(HookKind.values)}")
    if Hook.objects.filter(owner=owner).count() >= _MOST_HOOKS:
        raise RequestError("the hook cannot be used", seen=f"{_MOST_HOOKS} hooks are there already")
    if kind == HookKind.EMAIL:
        try:
            validate_email(target)
        except ValidationError:
            raise RequestError("the hook cannot be used", seen=f"{target[:100]!r} is no e-mail address") from None
    else:
        check_address(target)
    key = secrets.token_hex(32) if kind == HookKind.WEBHOOK else ""
    return Hook.objects.create(
        owner=owner, kind=kind, target=target, on_finish=on_finish, on_trouble=on_trouble, key=key
    )


def file_notices(job: Job, event: str) -> int:
    """Note down that the job's owner is to hear of an event; a keeper that does it twice does it once."""
    wanted = {"on_finish": True} if event == FINISH else {"on_trouble": True}
    occasion = f"{event}, attempt {job.attempts}, asked for at {job.queued.isoformat()}"
    filed = 0
    for hook in Hook.objects.filter(owner=job.owner_id, **wanted):
        if not Notice.objects.filter(hook=hook, job=job, event=event, body__occasion=occasion).exists():
            Notice.objects.create(hook=hook, job=job, event=event, body=_body(job, event, occasion))
            filed += 1
    return filed


def send_due(most: int = 20) -> int:
    """Send the notices whose time has come; give how many got through. Takes seconds for each that does not."""
    due = Notice.objects.filter(sent=None, tries__lt=MOST_TRIES, next_try__lte=timezone.now())
    sent = 0
    for notice in due.select_related("hook").order_by("next_try")[:most]:
        if _take(notice):
            sent += _send(notice)
    return sent


def send_test(hook: Hook) -> Delivery:
    """Send an example now, so that somebody can see whether it arrives; so many, and no more for a while."""
    count_test(hook.owner)
    job = Job(pk=0, owner=hook.owner, name="a test", state=JobState.FINISHED, sentence="This is only a test.")
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


def _body(job: Job, event: str, occasion: str) -> dict[str, Any]:
    """What is told: enough to know what happened, nothing of the data."""
    about = {
        "id": job.pk,
        "name": job.name,
        "state": job.state,
        "task": job.task,
        "step": job.step,
        "steps": job.steps,
        "attempts": job.attempts,
        "metrics": job.metrics,
        "sentence": job.sentence,
    }
    url = f"{settings.PUBLIC_URL}/runs/{job.pk}" if job.pk else f"{settings.PUBLIC_URL}/"
    return {"event": event, "occasion": occasion, "at": timezone.now().isoformat(), "run": about, "url": url}


def _mail(hook: Hook, event: str, body: dict[str, Any]) -> Delivery:
    run = body["run"]
    subject = clean(f"{run['name']}: {_WORDS.get(event, event)}", 150)
    metrics = [f"{metric_name(name)} {value:.4g} ({split})" for split, name, value in _numbers(run["metrics"])]
    steps = f"step {run['step']:,} of {run['steps']:,}" if run["steps"] else ""
    lines = [clean(run["sentence"], 600), *metrics, steps, body["url"]]
    try:
        send_mail(subject, "\n".join(line for line in lines if line), None, [hook.target])
    except (OSError, ValueError) as error:  # smtplib's errors are among them
        return Delivery(False, f"{type(error).__name__}: {error}")
    return Delivery(True, "the mail server took it")


_WORDS = {
    "finished": "the model is finished",
    "failed": "the run failed",
    "trouble": "an attempt failed, the run goes on",
    "test": "it arrived",
}


def _numbers(metrics: object) -> list[tuple[str, str, float]]:
    """The figures of the split that decides: test, or validation where there is none."""
    for split in ("test", "validation"):
        found = metrics.get(split) if isinstance(metrics, dict) else None
        numbers = found.items() if isinstance(found, dict) else ()
        if told := [(split, str(name), value) for name, value in numbers if type(value) in (int, float)]:
            return told[:10]
    return []
