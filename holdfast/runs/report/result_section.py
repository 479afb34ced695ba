"""How good the model is: metrics, scores by label, the confusion matrix, and examples it gets wrong."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.records import MissedQuery, WrongLabels
from holdfast.core.scores import metric_name, ordered_scores
from holdfast.runs.report.html import Content, Html, breakable, details, join, section, table, tag
from holdfast.runs.report.svg_charts import meter
from holdfast.runs.state import RunState
from holdfast.runs.wording import NO_LABEL, gives_no_label, not_measured_text, sentence

Json = dict[str, Any]

_SHOWN_CASES, _MORE_CASES = 8, 32
_LARGEST_TABLE = 16  # labels; a larger matrix is drawn, and its worst cells are listed
_WORST = 15
_DRAWN = 600


def result_section(state: RunState) -> Html:
    """The metrics of the finished model."""
    splits = _splits(state)
    if not splits:
        if state.state != "finished" or state.is_command:
            return Html("")
        return section("How good it is", tag("p", sentence(not_measured_text(state))), id_="result")
    shown = "test" if "test" in splits else "validation"
    kept, steps = state.records.metrics.get("step"), state.records.metrics.get("steps")
    note = f"The weights of step {kept:,} of {steps:,}." if isinstance(kept, int) and isinstance(steps, int) else ""
    return section(
        "How good it is",
        tag("p", note, class_="meta") if note else None,
        _metrics(splits),
        tag("p", sentence(NO_LABEL)) if gives_no_label(splits[shown]) else None,
        _classes(splits[shown].get("classes"), shown),
        _confusion(splits[shown].get("confusion"), _names(splits[shown].get("classes")), shown),
        id_="result",
    )


def metrics_table(state: RunState) -> Html:
    """The metrics of each split alone; nothing before there are any."""
    splits = _splits(state)
    return _metrics(splits) if splits else Html("")


def mistakes_section(state: RunState) -> Html:
    """Examples that the model gets wrong; for a language model, its answers."""
    mistakes = state.records.mistakes
    samples = (state.records.metrics.get("validation") or {}).get("samples") if state.records.metrics else None
    if state.task == "causal" and isinstance(samples, list):
        return section(
            "What it answers",
            tag("ul", [_sample(one) for one in samples if isinstance(one, dict)], class_="cases"),
            id_="mistakes",
        )
    if not mistakes or not (mistakes.labels or mistakes.queries):
        return Html("")
    shown = [*map(_text, mistakes.labels), *map(_query, mistakes.queries)][: _SHOWN_CASES + _MORE_CASES]
    order = "those with the lowest-ranked answer first" if mistakes.queries else "the most confident ones first"
    return section(
        "What it gets wrong",
        tag("p", f"From the {mistakes.split} split, {order}. Some labels may be wrong in the data.", class_="meta"),
        tag("ul", shown[:_SHOWN_CASES], class_="cases"),
        details("More", tag("ul", more, class_="cases")) if (more := shown[_SHOWN_CASES:]) else None,
        id_="mistakes",
    )


def worst_confusions(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """The most frequent confusions: label, prediction, how often, and of how many."""
    found = [
        (names[row], names[column], count, sum(counts))
        for row, counts in enumerate(confusion)
        for column, count in enumerate(counts)
        if row != column and count
    ]
    return sorted(found, key=lambda one: -one[2])[:_WORST]


def _splits(state: RunState) -> dict[str, Json]:
    return {
        name: found for name in ("validation", "test") if isinstance(found := state.records.metrics.get(name), dict)
    }


def _metrics(splits: dict[str, Json]) -> Html:
    names = ordered_scores({name: value for found in splits.values() for name, value in found.items()})
    shown = [name for name in names if not (name == "micro_f1" and "accuracy" in names)]
    rows = [[metric_name(name), *(_figure(found.get(name)) for found in splits.values())] for name in shown]
    return table(["metric", *splits], rows, numbers=range(1, len(splits) + 1))


def _figure(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else ""  # NaN was written as null


def _classes(rows: object, split: str) -> Html | None:
    classes = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if not classes:
        return None
    shown = [
        [
            row.get("label", ""),
            *(meter(row[name], f"{row[name]:.3f}") for name in ("precision", "recall", "f1")),
            f"{row.get('support', 0):,}",
        ]
        for row in sorted(classes, key=lambda row: -row.get("support", 0))
    ]
    head = ["label", "precision", "recall", "F1", "texts"]
    return join(tag("h3", f"By label, {split}"), table(head, shown, numbers=(4,)))


def _names(rows: object) -> list[str]:
    return [str(row.get("label", "")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _confusion(found: object, names: list[str], split: str) -> Html | None:
    if not isinstance(found, list) or len(found) != len(names) or not names:
        return None
    confusion = [[int(count) for count in row] for row in found]
    shown = _as_table(confusion, names) if len(names) <= _LARGEST_TABLE else _as_drawing(confusion, names)
    worst = worst_confusions(confusion, names)
    listed = None
    if worst and len(names) > 3:
        rows = [[truth, guess, f"{count:,}", f"{count / whole:.0%}"] for truth, guess, count, whole in worst]
        head = ["label", "predicted as", "texts", "of that label"]
        listed = table(head, rows, caption="Most frequent confusions", numbers=(2, 3))
    return join(tag("h3", f"Confusion matrix, {split}"), shown, listed)


def _as_table(confusion: list[list[int]], names: list[str]) -> Html:
    rows = []
    for at, (name, counts) in enumerate(zip(names, confusion, strict=True)):
        whole = sum(counts) or 1
        cells = [
            tag(
                "td",
                f"{count:,}",
                class_=f"{'hit' if at == column else 'miss'} share-{math.ceil(10 * count / whole)}"
                if count
                else "none",
            )
            for column, count in enumerate(counts)
        ]
        rows.append(tag("tr", tag("th", name, scope="row"), cells))
    head = tag(
        "thead",
        tag(
            "tr",
            tag("th", "label / predicted", scope="col"),
            [tag("th", breakable(name), scope="col") for name in names],
        ),
    )
    caption = "Rows are labels, columns are predictions"
    inner = tag("table", tag("caption", caption), head, tag("tbody", rows), class_="confusion")
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _as_drawing(confusion: list[list[int]], names: list[str]) -> Html:
    size = _DRAWN / len(names)
    cells: list[Content] = []
    for row, counts in enumerate(confusion):
        whole = sum(counts) or 1
        cells += [
            Html(
                f'<rect x="{column * size:.1f}" y="{row * size:.1f}" width="{size:.1f}" height="{size:.1f}" '
                f'fill="currentColor" fill-opacity="{0.12 + 0.88 * count / whole:.2f}">'
                f"{tag('title', f'{names[row]} predicted as {names[column]}: {count} of {whole}')}</rect>"
            )
            for column, count in enumerate(counts)
            if count
        ]
    about = f"{len(names)} labels. The diagonal is correct; every other cell is a confusion."
    drawing = tag(
        "svg",
        tag("title", "Confusion matrix"),
        tag("desc", about),
        cells,
        viewBox=f"0 0 {_DRAWN} {_DRAWN}",
        role="img",
        aria_label=f"Confusion matrix. {about}",
    )
    return tag("figure", drawing, tag("figcaption", about), class_="matrix")


def _text(one: WrongLabels) -> Html:
    def labels(names: Sequence[str]) -> str:
        return ", ".join(_with_chance(name, one.probabilities) for name in names) or "none"

    return _case(one.text, [("label", labels(one.expected)), ("predicted", labels(one.predicted)), _row(one)])


def _query(one: MissedQuery) -> Html:
    facts = [("rank of the answer", str(one.rank) if one.rank else "below 100"), _row(one)]
    body = join(
        tag("span", "query", class_="label"), tag("span", one.query, class_="said"),
        tag("span", "expected", class_="label"), tag("span", one.expected, class_="said"),
        tag("span", "found first", class_="label"), tag("span", one.found, class_="said"),
    )  # fmt: skip
    return tag("li", body, _facts(facts))


def _sample(one: Json) -> Html:
    return tag(
        "li",
        *(
            join(tag("span", name, class_="label"), tag("span", one.get(name, ""), class_="said"))
            for name in ("prompt", "answer", "wanted")
        ),
    )


def _case(text: object, facts: list[tuple[str, str] | None]) -> Html:
    return tag("li", tag("p", text), _facts(facts))


def _facts(facts: list[tuple[str, str] | None]) -> Html:
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in filter(None, facts)])


def _row(one: WrongLabels | MissedQuery) -> tuple[str, str] | None:
    return ("row", f"{one.row:,}") if one.row is not None else None


def _with_chance(name: str, probabilities: Mapping[str, float]) -> str:
    return f"{name} ({probabilities[name]:.0%})" if name in probabilities else name
