"""How it learned: loss, metrics, learning rate and memory over the steps of all attempts."""

from holdfast.core.events import Logged, Resumed, StepDone
from holdfast.core.scores import is_share, metric_name, shown_scores
from holdfast.core.text import human_bytes
from holdfast.runs.report.html import Html, details, section, tag
from holdfast.runs.report.svg_charts import Chart, Point, Series, line_chart, smoothed
from holdfast.runs.state import RunState

_LOOKS = ("a", "b", "c")
_SHORT_SECONDS = 300


def learning_section(state: RunState) -> Html:
    """All curves; nothing for a run without a step."""
    curves = tag("div", loss_chart(state), metric_chart(state), class_="pair")
    if not (state.curves.steps or state.curves.evaluations):
        return Html("")
    return section(
        "How it learned", curves, _resumed(state), details("Learning rate", rate_chart(state)), id_="learning"
    )


def loss_chart(state: RunState) -> Html:
    """The loss of each step, a smoothed line, and the loss of the evaluations."""
    points: list[Point] = [(step, loss) for step, loss in state.curves.losses()]
    held_out = _points(state, "loss")
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
        Chart(title="Loss", about=about, series=series, x_name="step", x_range=_range(state), marks=_marks(state))
    )


def metric_chart(state: RunState) -> Html:
    """The metrics that matter for the task, by evaluation."""
    known = dict.fromkeys(name for metrics in state.curves.evaluations.values() for name in metrics)
    names = [name for name in shown_scores(dict.fromkeys(known, 0.0)) if is_share(name)][: len(_LOOKS)]
    if not names:
        return _perplexity(state)
    series = [
        Series(name=metric_name(name), points=_points(state, name), look=look, dots=True)
        for name, look in zip(names, _LOOKS, strict=False)
    ]
    about = _about(series[0].points, series[0].name)
    return line_chart(
        Chart(
            title="Validation",
            about=about,
            series=series,
            x_name="step",
            x_range=_range(state),
            marks=_marks(state),
            percent=True,
        )
    )


def rate_chart(state: RunState) -> Html:
    """The learning rate."""
    points: list[Point] = [(step, rate) for step, event in sorted(state.curves.steps.items()) if (rate := _rate(event))]
    if not points:
        return Html("")
    series = [Series(name="learning rate", points=points)]
    about = f"Highest: {max(rate for _, rate in points):.2g}; at the end: {points[-1][1]:.2g}."
    return line_chart(Chart(title="Learning rate", about=about, series=series, x_name="step", zero=True))


def memory_chart(state: RunState, number: int | None = None) -> Html:
    """Resident memory of the processes, over all attempts or in one of them."""
    attempts = [attempt for attempt in state.attempts if number in (None, attempt.number)]
    points: list[Point] = [(at, held / 1e9) for attempt in attempts for at, held in attempt.memory]
    if len(points) < 2:
        return Html("")
    start, lasted = points[0][0], points[-1][0] - points[0][0]
    unit, size = ("minutes", 60) if lasted > _SHORT_SECONDS else ("seconds", 1)
    shown = [((at - start) / size, held) for at, held in points]
    series = [Series(name="resident", points=shown)]
    about = f"Peak: {human_bytes(max(held for _, held in shown) * 1e9)}."
    return line_chart(Chart(title="Memory in GB", about=about, series=series, x_name=unit, zero=True))


def _perplexity(state: RunState) -> Html:
    points = _points(state, "perplexity")
    series = [Series(name="perplexity", points=points, look="b", dots=True)]
    about = _about(points, "Perplexity")
    chart = Chart(title="Validation perplexity", about=about, series=series, x_name="step", x_range=_range(state))
    return line_chart(chart) if points else Html("")


def _points(state: RunState, name: str) -> list[Point]:
    return [(step, metrics[name]) for step, metrics in state.curves.evaluations.items() if name in metrics]


def _range(state: RunState) -> tuple[float, float]:
    return 0.0, float(max((*state.curves.steps, *state.curves.evaluations), default=1))


def _marks(state: RunState) -> list[tuple[float, str]]:
    """Where an attempt continued from a checkpoint."""
    last = max(state.curves.steps, default=None)
    return [
        (float(attempt.resumed.step), f"attempt {attempt.number}")
        for attempt in state.attempts[1:]
        if isinstance(attempt.resumed, Resumed) and (last is None or attempt.resumed.step <= last)
    ]


def _rate(event: StepDone | Logged) -> float | None:
    rate = event.lr if isinstance(event, StepDone) else event.values.get("learning_rate")
    return float(rate) if isinstance(rate, int | float) else None


def _resumed(state: RunState) -> Html | None:
    if not _marks(state):
        return None
    words = "Dashed lines: an attempt continued from a checkpoint. Steps that were repeated count once."
    return tag("p", words, class_="meta")


def _about(points: list[Point] | object, name: str) -> str:
    if not isinstance(points, list) or not points:
        return ""
    (first, start), (last, end) = points[0], points[-1]
    return f"{name} goes from {start:.4g} at step {first:,g} to {end:.4g} at step {last:,g}."
