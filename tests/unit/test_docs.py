"""What the documentation says can be followed: links lead somewhere, commands and options exist, names are files."""

import re
import tomllib

import click
import pytest

from holdfast.cli import COMMANDS, cli
from tests.docs_text import ROOT, all_pages, anchors_of, blocks_of, holdfast_calls, links_of, name_of, spans_of
from tools import event_pages
from tools.ledger import LEDGER, Line, read_ledger
from tools.numbers import CHARTS, PAGE, files_of

PAGES = all_pages()
WRITTEN_BY_HAND = [page for page in PAGES if "hazards" not in page.parts]
_LIKE_A_COMMAND = re.compile(r"^(\$ |holdfast |make |pip install)", re.MULTILINE)
_OURS = re.compile(r"(?:perf|tests|tools|docs|examples|holdfast|engine)/[\w/.-]+\.(?:py|md|csv|log|svg)")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
class TestEveryPage:
    def test_its_links_lead_somewhere(self, page):
        lost = []
        for link in links_of(page):
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            path = (page.parent / target).resolve() if target else page
            is_there = path.exists() and path.is_relative_to(ROOT)
            if not is_there or (anchor and path.suffix == ".md" and anchor not in anchors_of(path)):
                lost.append(link)
        assert not lost

    def test_its_blocks_of_commands_are_marked_as_such(self, page):
        unmarked = [
            f"line {block.line}"
            for block in blocks_of(page)
            if block.language not in ("sh", "console", "text") and _LIKE_A_COMMAND.search(block.text)
        ]
        assert not unmarked

    def test_its_commands_are_ones_we_have(self, page):
        for block in blocks_of(page):
            for command in block.commands:
                for words in holdfast_calls(command):
                    _parse(words)
                _check_make_and_pip(command)

    def test_commands_are_run_by_a_test_or_excused(self, page):
        untold = []
        for block in blocks_of(page):
            if block.run_by:
                assert (ROOT / block.run_by).exists(), f"line {block.line}"
            if block.commands and not (block.is_run or block.run_by or block.why_not):
                untold.append(f"line {block.line}: {block.commands[0]}")
        assert not untold, "mark the block, see tests/docs_text.py"

    def test_its_inline_commands_name_options_we_have(self, page):
        for span in spans_of(page):
            words = re.sub(r"[\[\](),|]", " ", span).split()
            if words and words[0] == "holdfast" and len(words) > 1:
                _check_options(words[1:])
            _check_make_and_pip(span)


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=name_of)
def test_files_that_a_page_names_exist(page):
    named = {match for span in spans_of(page) for match in _OURS.findall(span)}
    lost = [name for name in named if not (ROOT / name).exists() and not (ROOT / "holdfast" / name).exists()]
    assert not lost


def test_every_page_is_reached_from_the_first_one():
    reached, left = set(), [ROOT / "docs" / "README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in links_of(page) if ":" not in link]
        left += [target for target in targets if target.suffix == ".md" and target.exists()]
    beside = {ROOT / "README.md", ROOT / "examples" / "README.md"}
    assert [name_of(page) for page in PAGES if page not in reached | beside] == []


def test_the_page_of_events_is_current():
    assert event_pages.PAGE.read_text(encoding="utf-8") == event_pages.page(), "run: make pages"


def test_the_numbers_are_what_the_ledger_gives():
    wanted = files_of(read_ledger(LEDGER))
    outdated = [name_of(path) for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    assert outdated == [], "run: make numbers"
    assert set(CHARTS.glob("*.svg")) == set(wanted) - {PAGE}


def test_group_without_figures_is_marked():
    text = files_of([])[PAGE]
    assert "Not measured" in text
    assert "charts/" not in text


def test_a_newer_run_takes_the_place_of_an_older_one():
    old = [_line("aaaaaaa", "holdfast", 10.0), _line("aaaaaaa", "an old peer", 9.0)]
    new = [_line("bbbbbbb", "holdfast", 20.0), _line("bbbbbbb", "HF Trainer", 5.0)]
    text = files_of([*old, *new])[PAGE]
    assert "| holdfast | 20 | examples/s | 3 |" in text
    assert "| HF Trainer | 5 | examples/s | 3 | 4.00 times that |" in text
    assert "an old peer" not in text


def _line(commit: str, subject: str, value: float) -> Line:
    return Line("2026-01-01", commit, "a machine", "classify_cpu", subject, "examples/s", value, 3)


def _parse(words: list[str]) -> None:
    """Read the words as the real command line would, and run nothing."""
    command, context, name = _find(words)
    rest = words[len(name) :]
    if "--help" in rest or "-h" in rest:
        return
    values, _, _ = command.make_parser(context).parse_args(list(rest))
    types = {param.name: param.type for param in command.params}
    for key, value in values.items():
        if isinstance(types[key], click.Choice | click.types.IntRange | click.types.FloatRange) and value is not None:
            for one in value if isinstance(value, list) else [value]:
                types[key].convert(one, None, context)


def _check_options(words: list[str]) -> None:
    if words[0].startswith("-"):
        return
    command, _, name = _find(words)
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    ours = words[len(name) :]
    ours = ours[: ours.index("--")] if "--" in ours else ours
    unknown = [word for word in ours if word.startswith("--") and word.partition("=")[0] not in known]
    assert not unknown, f"holdfast {' '.join(words)}"


def _find(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    assert words[0] in COMMANDS, f"there is no holdfast {words[0]}"
    command, name = cli.get_command(click.Context(cli), words[0]), words[:1]
    assert command
    while isinstance(command, click.Group) and len(words) > len(name) and words[len(name)] in command.commands:
        command, name = command.commands[words[len(name)]], words[: len(name) + 1]
    return command, click.Context(command), name


def _check_make_and_pip(command: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^|&& )make (?:[A-Z]+=\S+ )?([a-z-]+)", command):
        assert target in targets, command
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"(?:holdfast|\.)\[([a-z,]+)\]", command):
        assert set(named.split(",")) <= set(extras), command
