"""Strict JSON for the API: input that a database cannot store is refused; NaN and infinity in responses become null."""

import json
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser
from ninja.renderers import JSONRenderer

from holdfast.core.artifacts import to_plain


class StrictParser(Parser):
    """Standard JSON, and only text that can be stored."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """The parsed body."""
        found = json.loads(request.body, parse_constant=_refuse)
        if not is_storable(found):
            raise ValueError("it contains invalid characters")
        return found  # type: ignore[no-any-return]  # each operation checks its type


class PlainRenderer(JSONRenderer):
    """JSON without NaN and infinity, which strict parsers refuse."""

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> Any:
        """The text of the response."""
        return json.dumps(to_plain(data), cls=self.encoder_class, ensure_ascii=False, allow_nan=False)


def is_storable(value: object) -> bool:
    """Whether every text in it can be stored: PostgreSQL refuses NUL, and lone surrogates are not valid text."""
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, dict):
        return all(is_storable(key) and is_storable(item) for key, item in value.items())
    return all(map(is_storable, value)) if isinstance(value, list) else True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")
