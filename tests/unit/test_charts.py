"""The charts of the numbers: pictures that any reader of SVG takes, with bars and lines where the figures are."""

import re
import xml.etree.ElementTree as ET

import pytest

from tools.bar_chart import TILE_HEIGHT, Bar, Panel, tile
from tools.growth_chart import growth_charts
from tools.ledger import LEDGER, Line, newest_runs, read_ledger
from tools.line_chart import Curve, line_chart
from tools.numbers import files_of
from tools.tiles import tiles

ROWS = {1_000.0: "1,000", 1_000_000.0: "1,000,000"}


def line(benchmark: str, subject: str, unit: str, value: float, rounds: int = 3) -> Line:
    return Line("2026-01-01", "aaaaaaa", "a machine", benchmark, subject, unit, value, rounds)


@pytest.mark.parametrize("name", sorted(path.name for path in files_of(read_ledger(LEDGER)) if path.suffix == ".svg"))
def test_every_chart_is_a_picture_without_anything_from_elsewhere(name):
    text = next(text for path, text in files_of(read_ledger(LEDGER)).items() if path.name == name)
    picture = ET.fromstring(text)
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert picture.get("aria-label")
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"href|url\(|<script|<image", text)


def test_a_bar_beyond_the_goal_is_full_and_marked():
    bars = (Bar("within", 0.5, "30 s", True), Bar("beyond", 2.0, "120 s", True), Bar("a peer", 1.0, "60 s", False))
    text = tile(Panel("Work lost", "goal 60 s", bars), 1.0)
    found = {kind: float(width) for kind, width in re.findall(r'class="(ours|over|bar)" .*?width="([\d.]+)"', text)}
    assert found["ours"] == found["over"] / 2
    assert found["bar"] == found["over"]


def test_many_bars_do_not_leave_the_tile():
    bars = tuple(Bar(f"bar {at}", at, str(at), True) for at in range(9))
    tops = [float(top) for top in re.findall(r'class="track" .*?y="([\d.]+)"', tile(Panel("Many", "", bars), 9.0))]
    assert max(tops) + 9 < TILE_HEIGHT


def test_logarithmic_axis_spaces_powers_of_ten_equally():
    curve = Curve("time", ((1_000.0, 1.0), (31_622.8, 31.6228), (1_000_000.0, 1_000.0)))
    text = line_chart("Time", "rows", "seconds", [curve], ROWS, {1.0: "1 s", 1_000.0: "1,000 s"})
    points = re.search(r'class="line c0".*? d="M([\d. ]+)L([\d. ]+)L([\d. ]+)"', text)
    (left, bottom), middle, (right, top) = (tuple(map(float, point.split())) for point in points.groups())
    assert middle == pytest.approx(((left + right) / 2, (bottom + top) / 2), abs=0.2)


def test_growth_chart_shows_proportional_line():
    costs = ((1_000, 2.0), (1_000_000, 200.0))
    figures = (("seconds", 1.0), ("MB at the peak", 50.0), ("MB in the preparing process", 20.0))
    name = "growth classify csv"
    run = [line(name, f"{rows:,} rows", unit, times * cost) for rows, cost in costs for unit, times in figures]
    charts = growth_charts({name: run})
    assert set(charts) == {"growth_time", "growth_memory"}
    assert "proportion" in charts["growth_time"]
    assert "proportion" not in charts["growth_memory"]
    assert growth_charts({}) == {}


def test_tile_without_figures_is_omitted():
    runs = newest_runs(
        [line("bare", f"{way}: {what}", "% of n", 50.0, 46) for what in ("finished", "same weights") for way in WAYS]
        + [line("healthy", "healthy runs that were killed", "runs", 0, 220)]
    )
    made = tiles(runs, {})
    assert set(made) == {"short_finish"}
    assert re.search(r"\b46 .*\b0 of 220\b", made["short_finish"])


def test_speeds_are_compared_in_one_unit():
    name = "classify_cuda"
    rates = [line(name, "ours", "texts/s", 30.0), line(name, "HF Trainer", "texts/s", 10.0)]
    tokens = [line(name, "ours", "tokens/s", 3000.0), line(name, "HF Trainer", "tokens/s", 1000.0)]
    chart = next(text for path, text in files_of([*rates, *tokens]).items() if path.name == "short_speed.svg")
    assert "3.0 times" in chart


WAYS = ("holdfast", "shell loop", "bare")
