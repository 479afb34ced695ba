"""Builds HTML from values. Anything that is not `Html` is text and is escaped, so data can never become markup."""

import re
from collections.abc import Iterable, Sequence
from html import escape

Content = object  # Html, text, a number, None (nothing), or several of them

_ALONE = {"br", "hr", "img", "meta", "link", "input", "path", "rect", "line", "circle"}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(element: str, /, *content: Content, **attributes: object) -> Html:
    """One element. `class_` is class, underscores become hyphens; None and False leave an attribute out."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _ALONE:
        return Html(f"<{element}{said}/>")
    return Html(f"<{element}{said}>{join(*content)}</{element}>")


def join(*content: Content) -> Html:
    """Several things one after the other."""
    return Html("".join(map(_text, content)))


def table(
    head: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    caption: str = "",
    numbers: Iterable[int] = (),
    class_: str | None = None,
) -> Html:
    """A table whose first column heads its rows; columns in `numbers` are aligned right."""
    right = set(numbers)
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag(
                "thead",
                tag(
                    "tr",
                    [_head(cell, "n" if at in right else None) for at, cell in enumerate(head)],
                ),
            ),
            tag("tbody", [_row(row, right) for row in rows]),
            class_=class_,
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or "Table of " + ", ".join(str(cell) for cell in head if cell),
    )


def _head(cell: Content, class_: str | None) -> Html:
    return tag("th", cell, scope="col", class_=class_) if cell else tag("td")


def section(title: str, *content: Content, id_: str) -> Html:
    """A part of the page; nothing when it has no content."""
    inside = join(*content)
    if not inside:
        return Html("")
    return tag("section", tag("h2", title, id=f"{id_}-title"), inside, id=id_, aria_labelledby=f"{id_}-title")


def breakable(name: str) -> Html:
    """A long name that may break after underscores, hyphens and slashes."""
    return Html(
        "".join(part + ("<wbr>" if part and part in "_-/" else "") for part in re.split("([_/-])", escape(name)))
    )


def details(summary: str, *content: Content) -> Html:
    """A part that the reader can open."""
    inside = join(*content)
    return tag("details", tag("summary", summary), inside) if inside else Html("")


def _row(cells: Sequence[Content], right: set[int]) -> Html:
    first, *others = cells
    return tag(
        "tr",
        tag("th", first, scope="row", class_="n" if 0 in right else None),
        [tag("td", cell, class_="n" if at in right else None) for at, cell in enumerate(others, start=1)],
    )


def _text(content: Content) -> str:
    if content is None or content is False:
        return ""
    if isinstance(content, Html):
        return str(content)
    if isinstance(content, (list, tuple)) or (isinstance(content, Iterable) and not isinstance(content, (str, bytes))):
        return "".join(map(_text, content))
    return escape(str(content))
