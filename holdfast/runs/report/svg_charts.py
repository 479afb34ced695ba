"""Charts in plain SVG. The drawing stretches with the page; its labels keep their size.

Places are attributes in percent, never styles: a page that allows no style but its own stylesheet shows them too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.runs.report.html import Content, Html, details, join, table, tag

Point = tuple[float, float]

_SIZE = 1000  # width and height of the drawing, in its own units
_MOST_POINTS = 500  # points of one line: more than a screen can show
_SHOWN_ROWS = 12  # of the numbers below a chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or one set of dots."""

    name: str
    points: Sequence[Point]
    look: str = "a"  # color: "a" to "f", or "faint"
    dots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The content of a chart and its axes."""

    title: str
    about: str  # one sentence for screen readers
    series: Sequence[Series]
    x_name: str
    x_range: tuple[float, float] | None = None  # so that charts next to each other share an axis
    marks: Sequence[tuple[float, str]] = field(default=())  # labeled places on the x axis
    zero: bool = False  # the y axis starts at 0
    percent: bool = False


def line_chart(chart: Chart) -> Html:
    """Lines over steps; nothing when there is nothing to draw."""
    points = [point for series in chart.series for point in series.points]
    if not points:
        return Html("")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_low, x_high = chart.x_range or (min(xs), max(xs))
    x_high = max(x_high, x_low + 1)
    low, high = 0 if chart.zero else min(ys), max(ys)
    if chart.percent and low == high:  # a share is between 0 and 1
        low, high = max(0.0, low - 0.1), min(1.0, high + 0.1)
    ticks = nice_ticks(low, high)
    y_low, y_high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> Point:
        across, up = (x - x_low) / (x_high - x_low), (y - y_low) / (y_high - y_low)
        return round(across * _SIZE, 1), round((1 - up) * _SIZE, 1)

    drawn = [_line(series, place) for series in chart.series]
    lines = [tag("line", x1=0, x2=_SIZE, y1=(y := place(x_low, tick)[1]), y2=y, class_="grid") for tick in ticks]
    marks = [tag("line", x1=(x := place(at, y_low)[0]), x2=x, y1=0, y2=_SIZE, class_="mark") for at, _ in chart.marks]
    words = [tag("text", word, x=f"{place(at, y_low)[0] / 10:.1f}%", dx=4, y="0.8em") for at, word in chart.marks]
    decimals = _decimals(ticks, chart.percent)
    y_words = [_y_word(tick, (tick - y_low) / (y_high - y_low), decimals, chart.percent) for tick in ticks]
    x_ticks = [tick for tick in nice_ticks(x_low, x_high, 5) if x_low <= tick <= x_high and tick == int(tick)]
    x_words = [_x_word(f"{tick:,.0f}", place(tick, y_low)[0] / 10) for tick in x_ticks]
    return tag(
        "figure",
        tag("figcaption", tag("b", chart.title), _legend(chart.series)),
        tag(
            "div",
            _words("ys", y_words),
            tag("div", _svg(chart.title, chart.about, *lines, *marks, *drawn), _words("over", words), class_="area"),
            _words("xs", x_words, _axis_name(chart.x_name)),
            class_="plot",
        ),
        details("The numbers", _numbers(chart, decimals)),
        class_="chart",
    )


def bar_chart(title: str, about: str, bars: Sequence[tuple[str, float]], x_name: str) -> Html:
    """Vertical bars, as in a histogram, each with the name of its range."""
    if not bars:
        return Html("")
    highest = max(value for _, value in bars) or 1
    ticks = nice_ticks(0, highest, 4)
    top, width = ticks[-1], _SIZE / len(bars)
    drawn = [
        tag(
            "rect",
            x=round(at * width + width * 0.04, 1),
            width=round(width * 0.92, 1),
            y=round(_SIZE * (1 - value / top), 1),
            height=round(_SIZE * value / top, 1),
            class_="bar",
        )
        for at, (_, value) in enumerate(bars)
    ]
    lines = [tag("line", x1=0, x2=_SIZE, y1=(y := _SIZE * (1 - tick / top)), y2=y, class_="grid") for tick in ticks]
    y_words = [_y_word(tick, tick / top, 0, False) for tick in ticks]
    every = max(1, math.ceil(len(bars) / 6))
    x_words = [_x_word(name, (at + 0.5) * width / 10) for at, (name, _) in enumerate(bars) if at % every == 0]
    return tag(
        "figure",
        tag("figcaption", tag("b", title)),
        tag(
            "div",
            _words("ys", y_words),
            tag("div", _svg(title, about, *lines, *drawn), class_="area"),
            _words("xs", x_words, _axis_name(x_name)),
            class_="plot low",
        ),
        details(
            "The numbers", table([x_name, "count"], [[name, f"{value:,.0f}"] for name, value in bars], numbers=[1])
        ),
        class_="chart",
    )


def meter(share: float, words: str, look: str = "a") -> Html:
    """A horizontal bar with its value next to it, for the cells of a table."""
    width = max(0.0, min(1.0, share)) * 100
    fill = tag("rect", width=f"{width:.1f}%", height="100%", class_=f"fill {look}")
    track = tag("svg", fill, class_="track", aria_hidden="true")
    return tag("span", track, tag("span", words, class_="value"), class_="meter")


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that enclose a range."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        low, high = (low - 0.5, low + 0.5) if math.isfinite(low) else (0.0, 1.0)
    rough = (high - low) / max(1, about - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(at * step, 10) for at in range(first, last + 1)]


def smoothed(points: Sequence[Point], weight: float = 0.95) -> list[Point]:
    """A smoothed line: each value is averaged with those before it, with fading weights."""
    weight = max(0.5, min(weight, 1 - 12 / max(12, len(points))))
    held, norm, found = 0.0, 0.0, []
    for x, y in points:
        held, norm = weight * held + (1 - weight) * y, weight * norm + (1 - weight)
        found.append((x, held / norm))
    return found


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Fewer points that look the same: the lowest and highest of each stretch."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most // 2))
    found: list[Point] = []
    for first in range(0, len(points), size):
        part = points[first : first + size]
        found += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return found


def _line(series: Series, place: Callable[[float, float], Point]) -> Html:
    points = [place(x, y) for x, y in thinned(series.points)]
    path = "M" + "L".join(f"{x:g},{y:g}" for x, y in points)
    line = tag("path", d=path, class_=f"line {series.look}") if len(points) > 1 else None
    if not series.dots and line:
        return line
    # A line of zero length with round ends stays a circle, however the drawing is stretched.
    dots = [
        tag("g", tag("title", f"{series.name}: {value:.4g} at {at:,g}"), _dot(x, y, series.look))
        for (x, y), (at, value) in zip(points, thinned(series.points), strict=True)
    ]
    return join(line, dots)


def _dot(x: float, y: float, look: str) -> Html:
    return tag("path", d=f"M{x:g},{y:g}h0", class_=f"dot {look}")


def _svg(title: str, about: str, *content: Html) -> Html:
    return tag(
        "svg",
        tag("title", title),
        tag("desc", about),
        *content,
        viewBox=f"0 0 {_SIZE} {_SIZE}",
        preserveAspectRatio="none",
        class_="stretch",
        role="img",
        aria_label=f"{title}. {about}",
    )


def _legend(series: Sequence[Series]) -> Html | None:
    if len(series) < 2:
        return None
    return tag("span", [tag("span", one.name, class_=f"key {one.look}") for one in series], class_="legend")


def _numbers(chart: Chart, decimals: int) -> Html:
    by_series = [dict(series.points) for series in chart.series]
    places = sorted({x for points in by_series for x in points})
    every = max(1, math.ceil(len(places) / _SHOWN_ROWS))
    kept = sorted({*places[::every], *places[-1:]})
    rows = [[f"{x:,g}", *(_value(points.get(x), decimals + 1, chart.percent) for points in by_series)] for x in kept]
    head = [chart.x_name, *(series.name for series in chart.series)]
    return table(head, rows, numbers=range(len(head)))


def _words(place: str, *content: Content) -> Html | None:
    return tag("svg", *content, class_=place, aria_hidden="true") if any(content) else None


def _x_word(word: str, place: float) -> Html:
    """A label below the axis, which must not extend past its ends."""
    anchor, shift = ("start", -4) if place < 4 else ("end", 6) if place > 90 else ("middle", 0)
    return tag("text", word, x=f"{place:.1f}%", dx=shift, y="1.2em", text_anchor=anchor)


def _axis_name(name: str) -> Html:
    return tag("text", name, x="100%", y="100%", dy="-0.2em", text_anchor="end")


def _y_word(tick: float, up: float, decimals: int, percent: bool) -> Html:
    word = _value(tick, decimals, percent)
    return tag("text", word, x="100%", dx=-8, y=f"{(1 - up) * 100:.1f}%", dy="0.32em", text_anchor="end")


def _value(value: float | None, decimals: int, percent: bool) -> str:
    if value is None:
        return ""
    if percent:
        return f"{value * 100:.{max(0, decimals)}f}%"
    return f"{value:,.{decimals}f}" if abs(value) >= 1e-4 or value == 0 else f"{value:.1e}"


def _decimals(ticks: Sequence[float], percent: bool) -> int:
    step = (ticks[1] - ticks[0]) * (100 if percent else 1)
    power = math.floor(math.log10(step) + 1e-9)
    is_quarter = math.isclose(step, 2.5 * 10**power)
    return max(0, min(6, int(is_quarter) - power))
