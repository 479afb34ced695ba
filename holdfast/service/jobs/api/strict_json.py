"""How the API reads and writes JSON: what a database or a reader could not take is refused, or becomes null."""

import json
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser
from ninja.renderers import JSONRenderer

from holdfast.core.artifacts import to_plain


class StrictParser(Parser):
    """JSON as its standard has it, and only text that can be kept."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """The body's value."""
        found = json.loads(request.body, parse_constant=_refuse)
        if not is_storable(found):
            raise ValueError("it contains invalid characters")
        return found  # type: ignore[no-any-return]  # what it must be, each operation says


class PlainRenderer(JSONRenderer):
    """JSON without NaN and infinity, which readers refuse."""

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> Any:
        """The answer's text."""
        return json.dumps(to_plain(data), cls=self.encoder_class, ensure_ascii=False, allow_nan=False)


def is_storable(value: object) -> bool:
    """Whether every text in it can be written: PostgreSQL takes no NUL, and half a character is no text."""
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, dict):
        return all(is_storable(key) and is_storable(item) for key, item in value.items())
    return all(map(is_storable, value)) if isinstance(value, list) else True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")
