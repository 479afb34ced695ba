"""Draws static SVG bar charts without scripts or external fonts, for light and dark mode.

`chart` draws a wide picture of several panels; `tile` a small one, two of which fit side by side.
"""

from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LABEL, ROW, GAP = 760, 300, 24, 20
TILE_WIDTH, TILE_HEIGHT, TILE_TOP, TILE_ROW = 410, 300, 62, 46
_STYLE = """<style>
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2933}
.head{font-weight:600;font-size:14px}.where{font-size:12px;fill:#52606d}.page{fill:#ffffff}
.bar{fill:#b8c0cc}.ours{fill:#2f9e6e}.over{fill:#c4593c}.track{fill:#eef1f4}
@media (prefers-color-scheme:dark){text{fill:#e4e7eb}.where{fill:#b0bac5}.page{fill:#161b22}
.bar{fill:#56616f}.ours{fill:#3fb27f}.over{fill:#e07a5f}.track{fill:#222a34}}
</style>"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with its label and value."""

    label: str
    value: float
    figure: str
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars that share a scale."""

    title: str
    where: str
    bars: tuple[Bar, ...]


def chart(title: str, panels: list[Panel]) -> str:
    """The panels below each other, each with its own scale starting at zero."""
    parts, top = [], GAP
    for panel in panels:
        parts.append(_text("head", GAP, top + 14, panel.title))
        parts.append(_text("where", GAP, top + 31, panel.where))
        top += 40
        most = max(bar.value for bar in panel.bars) or 1
        for bar in panel.bars:
            length = round((WIDTH - LABEL - 110) * bar.value / most, 1)
            parts.append(_text("label", LABEL - 10, top + 16, bar.label, anchor="end"))
            kind = "ours" if bar.is_ours else "bar"
            parts.append(
                f'<rect class="{kind}" x="{LABEL}" y="{top + 3}" width="{max(length, 1)}" height="{ROW - 6}" rx="2"/>'
            )
            parts.append(_text("figure", LABEL + max(length, 1) + 8, top + 16, bar.figure))
            top += ROW
        top += GAP
    return _picture(title, WIDTH, top, parts)


def tile(panel: Panel, full: float) -> str:
    """One panel as a small picture; a bar of value `full` has the full width."""
    parts = [_text("head", GAP, 28, panel.title), _text("where", GAP, 47, panel.where)]
    length, pitch = TILE_WIDTH - 2 * GAP, min(TILE_ROW, (TILE_HEIGHT - TILE_TOP - 10) / len(panel.bars))
    for at, bar in enumerate(panel.bars):
        top = round(TILE_TOP + at * pitch, 1)
        reach = round(length * min(bar.value / full, 1), 1)
        kind = "over" if bar.value > full else "ours" if bar.is_ours else "bar"
        parts.append(_text("label", GAP, top + 14, bar.label))
        parts.append(_text("label", TILE_WIDTH - GAP, top + 14, bar.figure, anchor="end"))
        parts.append(f'<rect class="track" x="{GAP}" y="{top + 20}" width="{length}" height="9" rx="2"/>')
        parts.append(f'<rect class="{kind}" x="{GAP}" y="{top + 20}" width="{max(reach, 1)}" height="9" rx="2"/>')
    return _picture(panel.title, TILE_WIDTH, TILE_HEIGHT, parts)


def _picture(title: str, width: int, height: int, parts: list[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    page = f'<rect class="page" width="{width}" height="{height}" rx="8"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    return "\n".join([head, f"<title>{escape(title)}</title>", _STYLE, page, *parts, "</svg>", ""])


def _text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
