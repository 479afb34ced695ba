"""Accessibility checks on HTML: names of controls, ids, headings. The browser tests run axe for the rest."""

import itertools
from html.parser import HTMLParser


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.labels: set[str] = set()
        self.controls: list[dict[str, str | None]] = []
        self.ids: list[str] = []
        self.levels: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        if has.get("id"):
            self.ids.append(str(has["id"]))
        if tag == "label" and has.get("for"):
            self.labels.add(str(has["for"]))
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.levels.append(int(tag[1]))
        # A checkbox stands inside its label.
        is_shown = has.get("type") not in ("hidden", "checkbox") and "hidden" not in has
        if tag in ("input", "select", "textarea") and is_shown:
            self.controls.append(has)


def faults_of(html: str) -> list[str]:
    """Controls without a name, ids that stand twice, headings that leave out a level."""
    page = _Page()
    page.feed(html)
    faults = [
        f"no name: {has}" for has in page.controls if has.get("id") not in page.labels and not has.get("aria-label")
    ]
    faults += [f"twice: {one}" for one in set(page.ids) if page.ids.count(one) > 1]
    if page.levels[:1] != [1] or page.levels.count(1) != 1:
        faults.append(f"one h1, and it comes first: {page.levels}")
    return faults + [
        f"h{after} after h{before}" for before, after in itertools.pairwise(page.levels) if after > before + 1
    ]
