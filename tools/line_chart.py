"""Draws a static SVG line chart over a logarithmic axis, in the style of the bar charts."""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 52, 56
_ROW = 20
_COLOURS = (("#1f7a54", "#4cc38f"), ("#2f6fb5", "#6cb0f2"), ("#a15c12", "#e0a458"), ("#7a3fa0", "#c493e6"))
_DASHES = ("", "7 4", "2 4", "9 3 2 3")  # lines can be distinguished without colors


@dataclass(frozen=True, slots=True)
class Curve:
    """One named line of (x, y) points."""

    label: str
    points: tuple[tuple[float, float], ...]


def line_chart(
    title: str,
    x_title: str,
    y_title: str,
    curves: list[Curve],
    ticks: dict[float, str],
    upright: dict[float, str] | None = None,
) -> str:
    """Curves over a logarithmic axis; the vertical axis is 0 to 100 percent, or logarithmic with given ticks."""
    height = HEIGHT + _ROW * len(curves)
    marks = upright or {float(percent): f"{percent} %" for percent in range(0, 101, 20)}

    def across(x: float) -> float:
        return round(_LEFT + _log_share(x, ticks) * (WIDTH - _LEFT - _RIGHT), 1)

    def down(y: float) -> float:
        share = _log_share(y, upright) if upright else y / 100
        return round(_TOP + (1 - share) * (HEIGHT - _TOP - _BOTTOM), 1)

    bottom = down(min(marks))
    parts = [_text("head", 20, 24, title), _text("where", 20, 42, y_title)]
    for y, words in marks.items():
        parts.append(f'<path class="grid" d="M{_LEFT} {down(y)}H{WIDTH - _RIGHT}"/>')
        parts.append(_text("where", _LEFT - 8, down(y) + 4, words, "end"))
    for x, words in ticks.items():
        parts.append(f'<path class="grid" d="M{across(x)} {bottom}v5"/>')
        parts.append(_text("where", across(x), bottom + 20, words, "end" if x == max(ticks) else "middle"))
    parts.append(_text("where", WIDTH - _RIGHT, bottom + 38, x_title, "end"))
    for at, curve in enumerate(curves):
        path = "L".join(f"{across(x)} {down(y)}" for x, y in curve.points)
        row = HEIGHT + _ROW * at
        parts.append(f'<path class="line c{at}" stroke-dasharray="{_DASHES[at]}" d="M{path}"/>')
        parts.append(f'<path class="line c{at}" stroke-dasharray="{_DASHES[at]}" d="M{_LEFT} {row}h36"/>')
        parts.append(_text("label", _LEFT + 46, row + 4, curve.label))
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    page = f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", _style(), page, *parts, "</svg>", ""])


def _log_share(value: float, ticks: dict[float, str]) -> float:
    return math.log(value / min(ticks)) / math.log(max(ticks) / min(ticks))


def _style() -> str:
    light = "".join(f".c{at}{{stroke:{one}}}" for at, (one, _) in enumerate(_COLOURS))
    dark = "".join(f".c{at}{{stroke:{one}}}" for at, (_, one) in enumerate(_COLOURS))
    return (
        '<style>\ntext{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2933}\n'
        ".head{font-weight:600;font-size:14px}.where{font-size:12px;fill:#52606d}.page{fill:#ffffff}\n"
        f".grid{{stroke:#d5dae1;fill:none}}.line{{fill:none;stroke-width:2.5}}{light}\n"
        "@media (prefers-color-scheme:dark){text{fill:#e4e7eb}.where{fill:#b0bac5}.page{fill:#161b22}\n"
        f".grid{{stroke:#39424e}}{dark}}}\n</style>"
    )


def _text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
