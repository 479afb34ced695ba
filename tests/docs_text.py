"""Reads the documentation as its readers do: links and the places they lead to, and the commands it shows.

A block of commands is fenced as `sh` (every line) or `console` (the lines after "$ "; the others are what was printed).
`<!-- run -->` right before a block makes tests/lab/test_docs.py run it: `<!-- run full -->` in the slow half only,
`<!-- run on Linux -->` only there, `<!-- run, exit 3 -->` with another exit code, `<!-- run, printed -->` to the very
output that the page shows.
`<!-- run by tests/x.py -->` says which other test runs it, `<!-- not run: why -->` that none does.
"""

import itertools
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_MARK = re.compile(r"<!-- run(?P<full> full)?(?P<linux> on Linux)?(?:, exit (?P<code>\d+))?(?P<printed>, printed)? -->")
_ELSEWHERE = re.compile(r"<!-- (?:run by (?P<by>\S+)|not run: (?P<why>.+)) -->")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_BETWEEN = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    is_run: bool = False
    is_slow: bool = False
    exit_code: int = 0
    is_printed: bool = False
    run_by: str = ""  # a file
    why_not: str = ""

    @property
    def commands(self) -> list[str]:
        """What a reader would type, each as one line."""
        text = self.text.replace("\\\n", " ")
        if self.language == "console":
            lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        else:
            lines = text.splitlines() if self.language == "sh" else []
        return [line for line in (_COMMENT.sub("", line).strip() for line in lines) if line]


def all_pages() -> list[Path]:
    """Every page that a reader is led to."""
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]
    return [*named, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """The page's path in the checkout."""
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """The page's fenced blocks, with the marks before them."""
    found, mark, elsewhere = [], None, None
    for token in _tokens(page):
        if token.type in ("fence", "code_block") and token.map:
            is_for_another = bool(mark and mark["linux"]) and sys.platform != "linux"
            language = token.info.strip() if token.type == "fence" else "sh"
            found.append(
                Block(
                    page,
                    token.map[0] + 1,
                    language,
                    token.content,
                    is_run=mark is not None and not is_for_another,
                    is_slow=bool(mark and mark["full"]),
                    exit_code=int(mark["code"] or 0) if mark else 0,
                    is_printed=bool(mark and mark["printed"]),
                    run_by=(elsewhere and elsewhere["by"]) or "",
                    why_not="it is for Linux" if is_for_another else (elsewhere and elsewhere["why"]) or "",
                )
            )
        comment = token.content.strip() if token.type == "html_block" else ""
        mark, elsewhere = _MARK.match(comment), _ELSEWHERE.match(comment)
    return found


def spans_of(page: Path) -> list[str]:
    """The page's pieces of inline code."""
    return [child.content for child in _inline(page) if child.type == "code_inline"]


def links_of(page: Path) -> list[str]:
    """Where the page's links and pictures lead."""
    found = [child.attrGet("href" if child.type == "link_open" else "src") for child in _inline(page)]
    return [str(target) for target in found if target]


def anchors_of(page: Path) -> set[str]:
    """The places in a page that a link can lead to, as GitHub and the generator both name them."""
    tokens = _tokens(page)
    titles = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    return {_slug(title) for title in titles if "--" not in _slug(title)}  # GitHub keeps a double dash, others do not


def holdfast_calls(command: str) -> Iterator[list[str]]:
    """The arguments of each call of holdfast in a line of shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _BETWEEN:
            words.append(word)
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words and words[0].rsplit("/", 1)[-1] == "holdfast":
            yield words[1:]
        words = []


def _tokens(page: Path) -> list[Token]:
    return _MARKDOWN.parse(page.read_text(encoding="utf-8"))


def _inline(page: Path) -> list[Token]:
    return [child for token in _tokens(page) if token.type == "inline" for child in token.children or []]


def _slug(title: str) -> str:
    plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).strip().lower()
    return plain.replace(" ", "-")
