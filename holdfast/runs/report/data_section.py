"""The training data: splits, labels, lengths, what was chosen while reading it, and what is worth checking."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.facts import DatasetFacts
from holdfast.core.prepared import Manifest
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
        _splits(state.task, facts, manifest),
        tag("div", _labels(facts) if facts else None, _lengths(state), class_="pair"),
        _warnings(facts) if facts else None,
        _choices(facts) if facts else None,
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


def _splits(task: str, facts: DatasetFacts | None, manifest: Manifest | None) -> Html | None:
    rows = [[name, f"{count:,}", ""] for name, count in facts.splits.items()] if facts else []
    if manifest:
        sizes = manifest.splits.items()
        rows = [[name, f"{size.rows:,}", f"{size.tokens:,}" if size.tokens else ""] for name, size in sizes]
    files = [Path(file).name for file in facts.files[:5]] if facts else []
    about = ", ".join(filter(None, (task, facts.form if facts else "", *files)))
    return join(
        tag("p", about, class_="meta") if about else None,
        table(["split", "rows", "tokens"], rows, numbers=(1, 2)) if rows else None,
    )


def _labels(facts: DatasetFacts) -> Html | None:
    if not facts.labels:
        return None
    ordered = sorted(facts.labels.items(), key=lambda item: -item[1])
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


def _lengths(state: RunState) -> Html | None:
    lengths = _token_lengths(state)
    limit = state.manifest.max_length if state.manifest else 0
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
    facts = state.records.dataset
    if not facts or not facts.lengths:
        return None
    rows = [
        [role, one.unit, f"{one.median:g}", f"{one.p95:,}", f"{one.longest:,}"] for role, one in facts.lengths.items()
    ]
    head = ["text", "unit", "median", "95th percentile", "longest"]
    return tag("div", tag("h3", "Lengths"), table(head, rows, numbers=(2, 3, 4)))


def _token_lengths(state: RunState) -> list[int]:
    """Tokens of each text, from the prepared arrays; none where the arrays or numpy are missing."""
    if state.settings is None:
        return []
    try:
        from holdfast.data.shards import open_tokens

        name = "corpus" if state.task == "two-tower" else "train"
        return [int(length) for length in open_tokens(Path(state.settings.prepared), name).lengths]
    except (ImportError, OSError, ValueError):
        return []


def _warnings(facts: DatasetFacts) -> Html | None:
    warnings = [tag("li", warning.line) for warning in facts.warnings]
    listed = facts.bad_rows[:_SHOWN_BAD_ROWS]
    rows = [[f"{bad.file}, row {bad.row}", bad.column, bad.value, bad.reason] for bad in listed]
    title = plural(facts.bad_row_count, "unusable row")
    return join(
        join(tag("h3", "Worth checking"), tag("ul", warnings, class_="notes")) if warnings else None,
        details(title, table(["where", "column", "value", "reason"], rows)) if rows else None,
    )


def _choices(facts: DatasetFacts) -> Html | None:
    rows = [[name, choice.value, choice.because] for name, choice in facts.choices.items()]
    return details("How it was read", table(["", "chosen", "because"], rows, class_="reasons")) if rows else None
