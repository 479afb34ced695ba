"""The training data: splits, labels, lengths, what was chosen while reading it, and what is worth checking."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.data_warnings import DataWarning
from holdfast.core.records import to_record
from holdfast.core.text import plural
from holdfast.runs.report.html import Html, details, join, section, table, tag
from holdfast.runs.report.svg_charts import bar_chart, meter
from holdfast.runs.state import RunState

_BINS = 24
_SHOWN_LABELS = 30
_SHOWN_BAD_ROWS = 10


def data_section(state: RunState) -> Html:
    """What is known of the data; nothing for a command."""
    facts, manifest = state.records.dataset, state.manifest
    if not facts and not manifest:
        return Html("")
    return section(
        "The data",
        _splits(state),
        tag("div", _labels(state), _lengths(state), class_="pair"),
        _warnings(state),
        _choices(state),
        id_="data",
    )


def histogram(lengths: Sequence[int], most: int = _BINS) -> list[tuple[str, float]]:
    """How many texts have how many tokens, in about `most` ranges of round width; the last range takes the rest."""
    if not len(lengths):
        return []
    ordered = sorted(int(length) for length in lengths)
    longest, nearly_all = ordered[-1], ordered[int(0.99 * (len(ordered) - 1))]
    rough = max(1, nearly_all / most)
    width = next(size for power in range(9) for size in (10**power, 2 * 10**power, 5 * 10**power) if size >= rough)
    count = nearly_all // width + 1
    bins = [0] * count
    for length in ordered:
        bins[min(length // width, count - 1)] += 1
    names = [str(at) if width == 1 else f"{at * width}\u2013{(at + 1) * width - 1}" for at in range(count)]
    if longest // width >= count:
        names[-1] = f"{(count - 1) * width}+"
    first = next(at for at, value in enumerate(bins) if value)
    return [(name, float(value)) for name, value in zip(names, bins, strict=True)][first:]


def _splits(state: RunState) -> Html | None:
    splits = state.manifest.get("splits")
    rows = []
    if isinstance(splits, dict):
        rows = [
            [name, f"{found.get('rows', 0):,}", f"{found.get('tokens', 0):,}" if found.get("tokens") else ""]
            for name, found in splits.items()
            if isinstance(found, dict)
        ]
    elif isinstance(state.records.dataset.get("splits"), dict):
        rows = [[name, f"{count:,}", ""] for name, count in state.records.dataset["splits"].items()]
    form = state.records.dataset.get("form")
    files = [Path(str(file)).name for file in state.records.dataset.get("files") or ()]
    said = ", ".join(filter(None, (state.task, str(form or ""), ", ".join(files[:5]))))
    return join(
        tag("p", said, class_="meta") if said else None,
        table(["split", "rows", "tokens"], rows, numbers=(1, 2)) if rows else None,
    )


def _labels(state: RunState) -> Html:
    counts = state.records.dataset.get("labels")
    if not isinstance(counts, dict) or not counts:
        return Html("")
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    most = ordered[0][1] or 1
    rows = [[name, meter(count / most, f"{count:,}")] for name, count in ordered[:_SHOWN_LABELS]]
    more = len(ordered) - _SHOWN_LABELS
    caption = f"{plural(len(ordered), 'label')}, rows of all splits"
    return tag(
        "div",
        tag("h3", "Labels"),
        table(["label", "rows"], rows, caption=caption),
        tag("p", f"and {more} more", class_="meta") if more > 0 else None,
    )


def _lengths(state: RunState) -> Html:
    lengths = _token_lengths(state)
    limit = state.manifest.get("max_length")
    name = "passages" if state.task == "two-tower" else "training texts"
    bars = histogram(lengths)
    if bars:
        ordered = sorted(lengths)
        median, longest = ordered[len(ordered) // 2], ordered[-1]
        about = f"Median: {median:,} tokens; longest: {longest:,}."
        cut = f" Longer texts were truncated to {limit:,}." if limit and longest >= limit else ""
        return tag(
            "div",
            tag("h3", "Lengths"),
            bar_chart(f"Tokens of {len(lengths):,} {name}", about, bars, "tokens"),
            tag("p", about + cut, class_="meta"),
        )
    found = state.records.dataset.get("lengths")
    if not isinstance(found, dict) or not found:
        return Html("")
    rows = [
        [role, one.get("unit", ""), f"{one.get('median', 0):g}", f"{one.get('p95', 0):,}", f"{one.get('longest', 0):,}"]
        for role, one in found.items()
        if isinstance(one, dict)
    ]
    head = ["text", "unit", "median", "95th percentile", "longest"]
    return tag("div", tag("h3", "Lengths"), table(head, rows, numbers=(2, 3, 4)))


def _token_lengths(state: RunState) -> list[int]:
    """Tokens of each text, from the prepared arrays; none where the arrays or numpy are missing."""
    prepared = state.settings.get("prepared")
    if not prepared:
        return []
    try:
        from holdfast.data.shards import open_tokens

        name = "corpus" if state.task == "two-tower" else "train"
        return [int(length) for length in open_tokens(Path(prepared), name).lengths]
    except (ImportError, OSError, ValueError):
        return []


def _warnings(state: RunState) -> Html | None:
    found = to_record(state.records.dataset.get("warnings"), tuple[DataWarning, ...]) or ()
    warnings = [tag("li", warning.line) for warning in found]
    bad = state.records.dataset.get("bad_row_count") or 0
    rows = [
        [
            f"{one.get('file', '')}, row {one.get('row', '')}",
            one.get("column", ""),
            one.get("value", ""),
            one.get("reason", ""),
        ]
        for one in (state.records.dataset.get("bad_rows") or ())[:_SHOWN_BAD_ROWS]
        if isinstance(one, dict)
    ]
    return join(
        join(tag("h3", "Worth checking"), tag("ul", warnings, class_="notes")) if warnings else None,
        details(f"{plural(bad, 'row')} that are unusable", table(["where", "column", "value", "reason"], rows))
        if rows
        else None,
    )


def _choices(state: RunState) -> Html | None:
    choices = state.records.dataset.get("choices")
    if not isinstance(choices, dict) or not choices:
        return None
    rows = [
        [name, choice.get("value", ""), choice.get("because", "")]
        for name, choice in choices.items()
        if isinstance(choice, dict)
    ]
    return details("How it was read", table(["", "chosen", "because"], rows, class_="reasons"))
