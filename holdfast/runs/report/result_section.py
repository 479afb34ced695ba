"""How good the model is: metrics, scores by label, the confusion matrix, and examples it gets wrong."""

import math
from collections.abc import Mapping, Sequence

from holdfast.core.records import MissedQuery, WrongLabels
from holdfast.core.scores import LabelScores, SampleAnswer, SplitMetrics, metric_name, shown_scores
from holdfast.runs.report.html import Content, Html, breakable, details, join, section, table, tag
from holdfast.runs.report.svg_charts import meter
from holdfast.runs.state import RunState
from holdfast.runs.wording import NO_LABEL, gives_no_label, not_measured_text, sentence

Confusion = Sequence[Sequence[int]]
Intervals = Mapping[str, tuple[float, float]]
INTERVALS = (
    "In parentheses: 95% confidence intervals. They do not include the choice of the seed or of the training rows."
)

_SHOWN_CASES, _MORE_CASES = 8, 32
_LARGEST_TABLE = 16  # labels; a larger matrix is drawn as an image, with its worst cells listed
_WORST = 15
_DRAWN = 600


def result_section(state: RunState) -> Html:
    """The metrics of the finished model."""
    metrics, splits = state.records.metrics, state.records.metrics.splits
    if not splits:
        if state.state != "finished" or state.is_command:
            return Html("")
        return section("How good it is", tag("p", sentence(not_measured_text(state))), id_="result")
    split, shown = list(splits.items())[-1]
    note = f"The weights of step {metrics.step:,} of {metrics.steps:,}." if metrics.steps else ""
    return section(
        "How good it is",
        tag("p", note, class_="meta") if note else None,
        scores_table(metrics.scores, {name: one.intervals for name, one in splits.items()}),
        tag("p", _spread_text(shown), class_="meta") if shown.folds else None,
        tag("p", INTERVALS, class_="meta") if shown.intervals else None,
        tag("p", sentence(NO_LABEL)) if gives_no_label(shown.scores) else None,
        join(tag("h3", f"By label, {split}"), labels_table(shown.classes)) if shown.classes else None,
        _confusion(shown.confusion, [one.label for one in shown.classes], split),
        id_="result",
    )


def metrics_table(state: RunState) -> Html:
    """The metrics of each split alone; nothing before there are any."""
    splits = state.records.metrics.splits
    return scores_table(
        {name: one.scores for name, one in splits.items()}, {name: one.intervals for name, one in splits.items()}
    )


def scores_table(splits: Mapping[str, Mapping[str, float]], intervals: Mapping[str, Intervals] = {}) -> Html:
    """A column of metrics for each split, with their intervals; nothing without any."""
    names = shown_scores({name: value for found in splits.values() for name, value in found.items()})
    rows = [
        [metric_name(name), *(_score(name, found, intervals.get(split, {})) for split, found in splits.items())]
        for name in names
    ]
    return table(["metric", *splits], rows, numbers=range(1, len(splits) + 1)) if rows else Html("")


def _spread_text(found: SplitMetrics) -> str:
    spread = ", ".join(f"{metric_name(name)} {value:.4f}" for name, value in shown_scores(found.spread).items())
    return f"The mean of {found.folds} folds. Standard deviation: {spread}."


def _score(name: str, found: Mapping[str, float], intervals: Intervals) -> str:
    if name not in found:
        return ""
    interval = intervals.get(name)
    return f"{found[name]:.4f}" + (f" ({interval[0]:.4f} to {interval[1]:.4f})" if interval else "")


def labels_table(classes: Sequence[LabelScores], most: int | None = None, *, caption: str = "") -> Html:
    """How well each label is predicted, the most frequent first."""
    rows = [
        [
            one.label,
            *(meter(share, f"{share:.3f}") for share in (one.precision, one.recall, one.f1)),
            f"{one.support:,}",
        ]
        for one in sorted(classes, key=lambda one: -one.support)[:most]
    ]
    return table(["label", "precision", "recall", "F1", "texts"], rows, caption=caption, numbers=(4,))


def mistakes_section(state: RunState) -> Html:
    """Examples that the model gets wrong; for a language model, its answers."""
    mistakes = state.records.mistakes
    samples = [one for found in state.records.metrics.splits.values() for one in found.samples]
    if state.task == "causal" and samples:
        return section("What it answers", tag("ul", list(map(_sample, samples)), class_="cases"), id_="mistakes")
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


def worst_confusions(confusion: Confusion, names: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """The most frequent confusions: label, prediction, how often, and of how many."""
    found = [
        (names[row], names[column], count, sum(counts))
        for row, counts in enumerate(confusion)
        for column, count in enumerate(counts)
        if row != column and count
    ]
    return sorted(found, key=lambda one: -one[2])[:_WORST]


def _confusion(confusion: Confusion, names: list[str], split: str) -> Html | None:
    if len(confusion) != len(names) or not names:
        return None
    shown = _as_table(confusion, names) if len(names) <= _LARGEST_TABLE else _as_drawing(confusion, names)
    worst = worst_confusions(confusion, names)
    listed = None
    if worst and len(names) > 3:
        rows = [[truth, guess, f"{count:,}", f"{count / whole:.0%}"] for truth, guess, count, whole in worst]
        head = ["label", "predicted as", "texts", "of that label"]
        listed = table(head, rows, caption="Most frequent confusions", numbers=(2, 3))
    return join(tag("h3", f"Confusion matrix, {split}"), shown, listed)


def _as_table(confusion: Confusion, names: list[str]) -> Html:
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


def _as_drawing(confusion: Confusion, names: list[str]) -> Html:
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
    texts = (("query", one.query), ("expected", one.expected), ("found first", one.found))
    return _named_texts(*texts, after=_facts(facts))


def _sample(one: SampleAnswer) -> Html:
    texts = (("prompt", one.prompt), ("answer", one.answer), ("expected", one.wanted))
    return tag(
        "li", *(join(tag("span", name, class_="label"), tag("span", text, class_="said")) for name, text in texts)
    )


def _named_texts(*texts: tuple[str, str], after: Html | None = None) -> Html:
    parts = [join(tag("span", name, class_="label"), tag("span", text, class_="said")) for name, text in texts]
    return tag("li", join(*parts), after)


def _case(text: object, facts: list[tuple[str, str] | None]) -> Html:
    return tag("li", tag("p", text), _facts(facts))


def _facts(facts: list[tuple[str, str] | None]) -> Html:
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in filter(None, facts)])


def _row(one: WrongLabels | MissedQuery) -> tuple[str, str] | None:
    return ("row", f"{one.row:,}") if one.row is not None else None


def _with_chance(name: str, probabilities: Mapping[str, float]) -> str:
    return f"{name} ({probabilities[name]:.0%})" if name in probabilities else name
