"""The house rules that a script can check: unique names, folders that say what they do, and no banned phrase."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "holdfast"
# Names that Django, or Python itself, prescribes.
CONVENTIONS = {"__init__", "__main__", "models", "views", "urls", "admin", "apps", "settings", "tasks"}
# Phrases that always have a plainer word. Text that others wrote is not searched, see `_texts`.
BANNED = re.compile(
    r"\b(at the most|for ever|anew|whoever|whomever|is let pass|reckoned|reckons|cannot be had|cannot be one|futile"
    r"|rungs?|(?:is|are|was|were) told of|tells? of|told of|as it was asked|is dear|of one's own|goes on|once more"
    r"|looks? after|looked after|go on (?:from|with)|dealt out|in the mean|beside|lies? (?:in|beside)"
    r"|ended from outside|so many at|behaviour|neighbour|learnt"
    r"|(?:optim|normal|recogn|synchron)is(?:e|ed|es|ing|ation))\b",
    re.IGNORECASE,
)
MOST_WORDS = 10  # of a test's name
WRITTEN_BY_OTHERS = {"matches", "near_misses"}


def _modules(folder: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "migrations" not in path.parts)


def test_file_names_are_unique():
    places = defaultdict(list)
    for path in _modules():
        if path.stem not in CONVENTIONS:
            places[path.stem].append(str(path.relative_to(ROOT)))
    assert [found for found in places.values() if len(found) > 1] == []


def test_public_class_names_are_unique():
    places = defaultdict(list)
    for path in _modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name != "Meta":
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_folder_says_what_it_does():
    empty = [
        str(path.relative_to(ROOT))
        for path in _modules()
        if path.name == "__init__.py"
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert empty == []


def test_test_names_are_short_and_unique():
    names = [
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    ]
    assert [name for name in names if name.count("_") > MOST_WORDS] == []
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("folder", ["", "holdfast", "tools", "perf", "docs", "deploy", "examples"])
def test_no_banned_phrase_is_used(folder):
    found = []
    for path in sorted((ROOT / folder).rglob("*") if folder else ROOT.glob("*.md")):
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
