"""Template tags and filters: times, states, sizes, numbers, and the main navigation."""

import datetime
from dataclasses import dataclass
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from holdfast import __version__
from holdfast.core.text import human_bytes, human_seconds

register = template.Library()

_PLACES = (("Runs", "/", "/runs"), ("Datasets", "/datasets/", "/datasets"), ("Models", "/models/", "/models"))
_MACHINES = ("Machines", "/machines/", "/machines")
_LOOKS = {  # of a job, a dataset, a model
    "queued": "idle",
    "running": "busy",
    "planned": "ready",
    "finished": "good",
    "failed": "bad",
    "stopped": "warn",
    "died": "bad",  # of an attempt
    "hung": "bad",
    "interrupted": "warn",
    "surveying": "busy",
    "ready": "good",
    "refused": "bad",
    "candidate": "idle",
    "promoted": "good",
}


@dataclass(frozen=True, slots=True)
class Link:
    """A link in the bar above each page."""

    name: str
    href: str
    is_here: bool


@register.simple_tag(takes_context=True)
def nav_links(context: dict[str, Any]) -> list[Link]:
    """The links of the main navigation; the current one is marked."""
    request = context.get("request")
    path = request.path if request else ""
    return [Link(name, href, path == href or path.startswith(below)) for name, href, below in (*_PLACES, _MACHINES)]


@register.simple_tag
def holdfast_version() -> str:
    """The version of Holdfast."""
    return __version__


@register.simple_tag
def ago(moment: datetime.datetime | None) -> SafeString | str:
    """A relative time with the exact one in its title; empty for None."""
    if moment is None:
        return ""
    words = ago_words((timezone.now() - moment).total_seconds())
    exact = moment.astimezone(datetime.UTC)
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>',
        exact.isoformat(timespec="seconds"),
        f"{exact:%Y-%m-%d %H:%M:%S} UTC",
        words,
    )


def ago_words(seconds: float) -> str:
    """An age in its largest unit; live.js keeps counting in the same format."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now" if seconds < 5 else f"{int(seconds)} s ago"


@register.simple_tag
def since(moment: datetime.datetime | None) -> SafeString | str:
    """A clock that counts up from this time."""
    if moment is None:
        return ""
    seconds = max(0.0, (timezone.now() - moment).total_seconds())
    exact = moment.astimezone(datetime.UTC).isoformat(timespec="seconds")
    return format_html('<time datetime="{}" data-since>{}</time>', exact, clock_words(seconds))


def clock_words(seconds: float) -> str:
    """A duration in whole seconds."""
    return human_seconds(seconds) if seconds >= 10 else f"{int(seconds)} s"


@register.simple_tag
def state(word: str, said: str = "") -> SafeString:
    """A state with its icon."""
    return format_html('<span class="state {}">{}</span>', _LOOKS.get(word, "idle"), said or word)


@register.filter
def size(count: float | None) -> str:
    """A human-readable size."""
    return "" if count is None else human_bytes(count)


@register.filter
def lasted(seconds: float | None) -> str:
    """A human-readable duration."""
    return "" if seconds is None else human_seconds(seconds)


@register.filter
def thousands(count: float | None) -> str:
    """A number with thousands separators; empty when there is none."""
    return "" if count is None else f"{count:,}"
