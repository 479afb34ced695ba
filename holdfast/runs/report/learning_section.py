"""How it learned: loss, metrics, learning rate and memory over the steps of all attempts."""

from holdfast.core.text import human_bytes
from holdfast.runs.report.html import Html, details, section, tag
from holdfast.runs.report.svg_charts import Chart, Point, Series, line_chart, smoothed
from holdfast.runs.story import Story

SHARES = {  # metrics between 0 and 1 by task, the deciding one first
    "classify": ("accuracy", "micro_f1", "macro_f1"),
    "two-tower": ("ndcg@10", "recall@10", "mrr@10"),
}
_LOOKS = ("a", "b", "c")
_SHORT_SECONDS = 300


def learning_section(story: Story) -> Html:
    """All curves; nothing for a run that made no step."""
    curves = tag("div", loss_chart(story), metric_chart(story), class_="pair")
    if not (story.steps or story.evaluations):
        return Html("")
    return section(
        "How it learned", curves, _resumed(story), details("Learning rate", rate_chart(story)), id_="learning"
    )


def loss_chart(story: Story) -> Html:
    """The loss of each step, a line through it, and that of the evaluations."""
    points: list[Point] = [(step, float(event["loss"])) for step, event in story.steps.items()]
    held_out = _points(story, "loss")
    series = []
    if len(points) >= 12:
        series = [
            Series(name="each step", points=points, look="faint"),
            Series(name="smoothed", points=smoothed(points)),
        ]
    elif points:
        series = [Series(name="each step", points=points, dots=True)]
    if held_out:
        series.append(Series(name="validation", points=held_out, look="b", dots=True))
    about = _about(points or held_out, "Loss")
    return line_chart(
        Chart(title="Loss", about=about, series=series, x_name="step", x_range=_range(story), marks=_marks(story))
    )


def metric_chart(story: Story) -> Html:
    """The metrics that matter for the task, by evaluation."""
    known = {name for metrics in story.evaluations.values() for name in metrics}
    names = [
        name for name in _metric_names(story) if name in known and not (name == "micro_f1" and "accuracy" in known)
    ]
    if not names:
        return _perplexity(story)
    series = [
        Series(name=name.replace("_", " "), points=_points(story, name), look=look, dots=True)
        for name, look in zip(names, _LOOKS, strict=False)
    ]
    about = _about(series[0].points, series[0].name)
    return line_chart(
        Chart(
            title="Validation",
            about=about,
            series=series,
            x_name="step",
            x_range=_range(story),
            marks=_marks(story),
            percent=True,
        )
    )


def rate_chart(story: Story) -> Html:
    """The learning rate."""
    names = ("lr", "learning_rate")
    points: list[Point] = [
        (step, float(event[name]))
        for step, event in story.steps.items()
        for name in names
        if isinstance(event.get(name), int | float)
    ]
    if not points:
        return Html("")
    series = [Series(name="learning rate", points=points)]
    about = f"Highest {max(rate for _, rate in points):.2g}, {points[-1][1]:.2g} at the end."
    return line_chart(Chart(title="Learning rate", about=about, series=series, x_name="step", zero=True))


def memory_chart(story: Story) -> Html:
    """Resident memory of the process tree, over all attempts."""
    points: list[Point] = []
    for attempt in story.attempts:
        for sample in attempt.samples:
            at, held = sample.get("time"), sample.get("resident_bytes")
            if isinstance(at, int | float) and isinstance(held, int | float):
                points.append((float(at), held / 1e9))
    if len(points) < 2:
        return Html("")
    start, lasted = points[0][0], points[-1][0] - points[0][0]
    unit, size = ("minutes", 60) if lasted > _SHORT_SECONDS else ("seconds", 1)
    shown = [((at - start) / size, held) for at, held in points]
    series = [Series(name="resident", points=shown)]
    about = f"At most {human_bytes(max(held for _, held in shown) * 1e9)}."
    return line_chart(Chart(title="Memory in GB", about=about, series=series, x_name=unit, zero=True))


def _metric_names(story: Story) -> tuple[str, ...]:
    if story.task in SHARES:
        return SHARES[story.task]
    if story.task:
        return ()
    found = dict.fromkeys(name for metrics in story.evaluations.values() for name in metrics)
    return tuple(
        name
        for name in found
        if all(0 <= metrics.get(name, 0) <= 1 for metrics in story.evaluations.values())
        and name not in ("loss", "epoch")
    )


def _perplexity(story: Story) -> Html:
    points = _points(story, "perplexity")
    series = [Series(name="perplexity", points=points, look="b", dots=True)]
    about = _about(points, "Perplexity")
    chart = Chart(title="Validation perplexity", about=about, series=series, x_name="step", x_range=_range(story))
    return line_chart(chart) if points else Html("")


def _points(story: Story, name: str) -> list[Point]:
    return [(step, metrics[name]) for step, metrics in story.evaluations.items() if name in metrics]


def _range(story: Story) -> tuple[float, float]:
    return 0.0, float(max((*story.steps, *story.evaluations), default=1))


def _marks(story: Story) -> list[tuple[float, str]]:
    """Where an attempt went on from a checkpoint."""
    found = []
    for attempt in story.attempts[1:]:
        for event in attempt.named("resumed"):
            if isinstance(event.get("step"), int):
                found.append((float(event["step"]), f"attempt {attempt.number}"))
    return [mark for mark in found if not story.steps or mark[0] <= max(story.steps)]


def _resumed(story: Story) -> Html | None:
    if not _marks(story):
        return None
    words = "Dashed lines: where an attempt went on from a checkpoint. Steps done again after it are counted once."
    return tag("p", words, class_="meta")


def _about(points: list[Point] | object, name: str) -> str:
    if not isinstance(points, list) or not points:
        return ""
    (first, start), (last, end) = points[0], points[-1]
    return f"{name} goes from {start:.4g} at step {first:,g} to {end:.4g} at step {last:,g}."
