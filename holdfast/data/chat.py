"""Renders conversations with a model's chat template, and marks the turns of the assistant.

A template comes with its model and is a program, so it runs in jinja2's sandbox. A model without one gets headings.
"""

import datetime
import json
from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import RequestError, install
from holdfast.core.plan import Choice
from holdfast.data.tokenizer import ModelTokenizer

Turns = Sequence[tuple[str, str]]
Span = tuple[int, int]

HEADINGS = """\
{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}### Response:
{{ message.content }}{{ eos_token }}

{% elif message.role == 'user' %}### Instruction:
{{ message.content }}

{% else %}{{ message.content }}

{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:
{% endif %}"""


class CannotRender(Exception):
    """The chat template rejects a conversation."""


class Chat:
    """A chat template, ready to render."""

    def __init__(self, tokens: ModelTokenizer, template: str | None = None):
        self.chosen, self.source = _choose(tokens, template)
        if self.source is HEADINGS and not tokens.marks[0]:
            self.source = HEADINGS.replace("{{ bos_token }}", "")  # this tokenizer has none before a text
        self._template = _compile(self.source)
        self._marks = {name: tokens.special(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}

    def render(self, turns: Turns) -> tuple[str, list[Span]]:
        """The conversation as one text, and where the turns of the assistant are in it, each with its end token."""
        text = self._render(turns)
        spans: list[Span] = []
        reached = 0
        for at, (role, content) in enumerate(turns):
            if role != "assistant":
                continue
            prompt = self._render(turns[:at], add_generation_prompt=True)
            start = len(prompt) if text.startswith(prompt) else text.find(content, reached)
            if start < 0:
                raise CannotRender("the chat template changes the text of an answer")
            upto = text if at == len(turns) - 1 else self._render(turns[: at + 1])
            end = len(upto) if text.startswith(upto) else start + len(content)
            reached = len(text[:end].rstrip())
            spans.append((start, reached))
        return text, spans

    def prompt(self, turns: Turns) -> str:
        """The conversation so far as one text, ready for the assistant's next turn."""
        return self._render(turns, add_generation_prompt=True)

    def _render(self, turns: Turns, add_generation_prompt: bool = False) -> str:
        from jinja2 import TemplateError

        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            return str(
                self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **self._marks)
            )
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            raise CannotRender(f"the chat template rejects the conversation: {error}") from error


def _choose(tokens: ModelTokenizer, requested: str | None) -> tuple[Choice[str], str]:
    if requested:
        return Choice("the given template", "as requested"), requested
    if tokens.own_chat_template:
        return Choice("the model's chat template", f"it is in {tokens.folder.name}"), tokens.own_chat_template
    return Choice("headings (### Instruction, ### Response)", "the model has no chat template"), HEADINGS


def _compile(source: str) -> Any:
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise RequestError(
            "chat templates need an extra that is not installed", found=str(error), try_next=(install("train"),)
        ) from error

    class Generation(Extension):
        """Accepts `{% generation %}`, which is not needed: answers are found by rendering the turns before them."""

        tags = {"generation"}  # noqa: RUF012  (jinja2's own way to name an extension's tags)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise RequestError(
            "the chat template is not valid",
            found=f"line {getattr(error, 'lineno', '?')}: {error}",
            setting="chat_template",
        ) from error


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **others: Any) -> str:
    """Like transformers: without jinja2's escapes for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **others)
