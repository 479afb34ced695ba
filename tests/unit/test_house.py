"""The house rules that a script can check."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Phrases that have a plainer word in every sentence; docs and text that others wrote aside, see `_texts`.
BANNED = re.compile(
    r"\b(at the most|for ever|anew|whoever|whomever|is let pass|reckoned|reckons|cannot be had|cannot be one|futile"
    r"|every rung|(?:is|are|was|were) told of|tells? of|told of|as it was asked|is dear|of one's own|goes on|once more"
    r"|nobody looks after|beside|lies? (?:in|beside)|ended from outside|so many at|behaviour|licence|neighbour|learnt"
    r"|(?:optim|normal|recogn|synchron)is(?:e|ed|es|ing|ation))\b",
    re.IGNORECASE,
)
WRITTEN_BY_OTHERS = {"matches", "near_misses"}


EDITED = ("core", "doctor", "hazards", "logs", "machine", "models", "planning")


@pytest.mark.parametrize("folder", [*(f"holdfast/{name}" for name in EDITED), "tools", "docs", "deploy", "examples"])
def test_no_banned_phrase_is_used(folder):
    found = []
    for path in sorted((ROOT / folder).rglob("*")):
        found += [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in _texts(path) if BANNED.search(text)]
    assert found == []


def _texts(path: Path) -> list[tuple[int, str]]:
    """What a person reads in a file: docstrings and strings of Python, all of a template or a page."""
    if path.suffix == ".py" and "__pycache__" not in path.parts:
        source = path.read_text(encoding="utf-8")
        lines = source.encode().splitlines()
        tree = ast.parse(source)
        others = {
            id(node)
            for part in ast.walk(tree)
            if isinstance(part, ast.keyword) and part.arg in WRITTEN_BY_OTHERS
            for node in ast.walk(part)
        }
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        patterns = {id(node) for node in constants if lines[node.lineno - 1][node.col_offset :][:1] in (b"r", b"R")}
        return [(node.lineno, node.value) for node in constants if id(node) not in others | patterns]
    if path.suffix in (".html", ".txt", ".yaml", ".sbatch") or (path.suffix == ".md" and "hazards" not in path.parts):
        return list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    return []
