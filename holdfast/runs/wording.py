"""Every sentence about a run, an attempt or a decision, for people. Those about single events: `runs/event_wording.py`.

    headline(state)            "Training: step 44/93, loss 1.18, 8 s left."
    attempt_lines(attempt)     what it changed, how far it came, how it ended and why
    closing_lines(state)       the last lines on the screen: result, scores, what to do next

Values come in, text goes out: nothing is decided here, and no code parses the text. The terminal, the pages, the
report and the API all use these, so a run is described in the same words everywhere.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from holdfast.core import events as ev
from holdfast.core.evidence import Decision, Passage
from holdfast.core.plan import Reason
from holdfast.core.records import CommandRequest, ComparedTime, ForecastCheck
from holdfast.core.runfolder import REPORT, REQUEST
from holdfast.core.scores import (
    ORDER,
    final_score,
    interval_value,
    is_share,
    metric_name,
    metric_value,
    ordered_scores,
    shown_scores,
)
from holdfast.core.settings import TrainRequest
from holdfast.core.text import human_bytes, human_seconds, plural, processes_words
from holdfast.data.split import FEWEST_ROWS
from holdfast.runs.cause_wording import full_cause_text, short_cause_text
from holdfast.runs.observation_wording import nan_text, observation_text, phase_text
from holdfast.runs.state import AttemptState, RunState

Mark = Literal["", "ok", "..", "!", "x", "--"]  # none, done, in progress, attention, failed, stopped or skipped

NO_LABEL = "the model predicts no label at all: it has learned too little"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SHOWN_CHARACTERS = 300
_SHOWN_SCORES = 4
_DISTURBED = 0.1  # share of the cores that other programs took or freed
_COMMON_NAMES = {"train", "data", "dataset"}
ENDED = {
    "running": "is running",
    "finished": "finished",
    "died": "failed",
    "hung": "hung and was terminated",
    "stopped": "was stopped",
    "interrupted": "interrupted: its supervisor was killed",
}
_MARKS: Mapping[str, Mark] = {"running": "..", "finished": "ok", "stopped": "--", "interrupted": "--"}
_DOUBT = {"proven": "Cause, proven", "likely": "Probable cause"}


class Line(Struct, frozen=True):
    """One line about a run: on a terminal with a mark and a name in front, on a page with a style."""

    text: str
    mark: Mark = ""
    name: str = ""
    is_detail: bool = False  # shown with -v, or on a page of its own


# Small things


def clean(text: object, characters: int = _SHOWN_CHARACTERS) -> str:
    """A log's text for a terminal: one line, no control characters, not endless."""
    flat = _CONTROL.sub("", " ".join(str(text).split()))
    return flat if len(flat) <= characters else flat[:characters] + "..."


def typed_path(path: Path) -> str:
    """A path as one would type it from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def sentence(text: str) -> str:
    """The same as a sentence: a capital letter and a full stop."""
    flat = text.strip().rstrip(".")
    return flat[:1].upper() + flat[1:] + "." if flat else ""


def changes_text(changes: Mapping[str, object]) -> str:
    """Changed settings: `loader_workers 0, OMP_NUM_THREADS=1`."""
    settings = [f"{name} {value}" for name, value in changes.items() if not name.isupper()]
    return ", ".join([*settings, *(f"{name}={value}" for name, value in changes.items() if name.isupper())])


def scores_text(
    metrics: Mapping[str, object], intervals: Mapping[str, tuple[float, float]] = {}, spread: Mapping[str, float] = {}
) -> str:
    """The metrics that say most, the first with its interval: "accuracy 92% (95% CI 90.2 to 93.8%), macro F1 91%"."""
    shown = [one for one in shown_scores(metrics).items() if one[0] in ORDER][:_SHOWN_SCORES]
    texts = [f"{metric_name(name)} {metric_value(name, value)}" for name, value in shown]
    if shown and spread and (off := spread.get(shown[0][0])) is not None:
        off_text = f"{100 * off:.1f}" if is_share(shown[0][0]) else f"{off:.3g}"
        texts[0] += f" \u00b1 {off_text}"
    if shown and (interval := intervals.get(shown[0][0])):
        texts[0] += f" (95% CI {interval_value(shown[0][0], interval)})"
    return ", ".join(texts)


def evaluation_text(metrics: Mapping[str, object]) -> str:
    """An evaluation during training: the deciding metric and the loss."""
    scores = ordered_scores(metrics)
    shown = dict.fromkeys((next(iter(scores), ""), "loss"))
    return ", ".join(f"{metric_name(name)} {metric_value(name, scores[name])}" for name in shown if name in scores)


def speed_text(steps_per_second: float) -> str:
    """A speed: "3.2 steps/s" or "4.1 s/step"."""
    if steps_per_second >= 1:
        return f"{steps_per_second:.3g} steps/s"
    return f"{human_seconds(1 / steps_per_second).replace(' s', ' s/step', 1)}"


def cores_text(cores: float) -> str:
    """A number of cores: "1.8 cores", "0.55 cores"."""
    return f"{cores:.1f} cores" if cores >= 1 else f"{cores:.2f} cores"


def machines_text(event: ev.MachinesAwaited | ev.LeaderAwaited) -> str:
    """Which machines a run waits for."""
    match event:
        case ev.MachinesAwaited():
            here = f"{len(event.present)} of {event.wanted} machines have joined"
            return f"{here} ({', '.join(event.present)})" if event.present else here
        case ev.LeaderAwaited(state="asked_to_stop"):
            return f"asked {event.leader} to stop the run; Ctrl-C again leaves the run to the other machines"
        case ev.LeaderAwaited(state="leads"):
            return f"{event.leader} leads; waiting for its next attempt"
    left = f", {human_seconds(event.seconds)} left" if event.seconds else ""
    return f"waiting to see whether {event.leader} still owns this run{left}"


# A run


def run_title(state: RunState) -> str:
    """What a run is called: its command, or model and data."""
    request = state.records.request
    if isinstance(request, CommandRequest):
        return shlex.join([Path(request.command[0]).name, *request.command[1:]])
    data = data_path(state)
    # Half of all datasets are called train.csv.
    name = f"{data.parent.name}/{data.name}" if data.stem in _COMMON_NAMES and data.parent.name else data.name
    return " on ".join(filter(None, (base_model(state), name))) or state.folder.name


def data_path(state: RunState) -> Path:
    """The dataset of a training run, as it was requested."""
    request, dataset = state.records.request, state.records.dataset
    known = request.data if isinstance(request, TrainRequest) else ""
    return Path(known or next(iter(dataset.files if dataset else ()), ""))


def base_model(state: RunState) -> str:
    """The name of the model that a run starts from."""
    plan, request = state.records.plan, state.records.request
    if plan and plan.model.name:
        return plan.model.name
    requested = request.model if isinstance(request, TrainRequest) else None
    return Path(state.settings.model if state.settings else requested or "").name


def state_text(state: RunState) -> str:
    """The state in a few words: "training", "waiting for machines", "loading the model"."""
    if state.is_orphaned:
        return "training without a supervisor"
    if state.is_stopping and not state.has_ended:
        return "stopping"
    if state.state == "waiting":
        return "waiting for machines"
    if state.is_training:
        is_plain_script = state.is_command and state.phase in ("", "start")  # it has no phases that we know
        return "running" if is_plain_script else phase_text(state.phase) or "training"
    if state.state in ("preparing", "proving"):
        return phase_text(state.stage) or state.state
    if state.state == "training" and state.attempt:  # its last attempt has ended, and the run goes on
        return "finishing" if state.attempt.outcome == "finished" else "between attempts"
    return state.state


def progress_text(state: RunState, *, speed: bool = False) -> str:
    """The numbers of a run: "step 44/93, loss 1.18, 8 s left, 402.1 MB"."""
    attempt = state.attempt if state.is_training else None
    return numbers_text(
        step=state.step,
        steps=state.steps,
        loss=state.loss,
        steps_per_second=state.steps_per_second if speed else None,
        seconds_left=state.seconds_left,
        resident_bytes=attempt.resident_bytes if attempt else None,
        processes=attempt.processes if attempt else 1,
    )


def brief_text(state: RunState) -> str:
    """A run without what changes while nothing happens: "training, step 44/93, loss 1.18, attempt 2"."""
    attempt = f"attempt {len(state.attempts)}" if state.attempts else ""
    numbers = numbers_text(step=state.step, steps=state.steps, loss=state.loss)
    return ", ".join(filter(None, (state_text(state), numbers, attempt)))


def numbers_text(
    *,
    step: int,
    steps: int,
    loss: float | None,
    steps_per_second: float | None = None,
    seconds_left: float | None = None,
    resident_bytes: int | None = None,
    processes: int = 1,
) -> str:
    """The same of a run on another machine."""
    parts = [
        (f"step {step:,}" + (f"/{steps:,}" if steps else "")) if step or steps else "",
        f"loss {loss:.4g}" if loss is not None else "",
        speed_text(steps_per_second) if steps_per_second else "",
        f"{human_seconds(seconds_left)} left" if seconds_left is not None else "",
        human_bytes(resident_bytes) if resident_bytes else "",
        processes_words(processes),
    ]
    return ", ".join(part for part in parts if part)


def figures(state: RunState) -> Iterator[tuple[str, str]]:
    """The numbers at the top of a page, each after its name: "accuracy, test", "92.1%"."""
    scores = state.scores
    if score := final_score(scores):
        for split, found in reversed(list(scores.items())):
            if score[1] in found:
                yield f"{metric_name(score[1])}, {split}", metric_value(score[1], found[score[1]])
    if state.step:
        is_part = state.steps and state.steps != state.step
        yield (f"of {state.steps:,} steps" if is_part else "steps"), f"{state.step:,}"
    if state.loss is not None and state.state != "finished":
        yield "loss, smoothed", f"{state.loss:.4g}"
    if state.is_training and state.attempt and state.attempt.resident_bytes:
        yield "memory", human_bytes(state.attempt.resident_bytes)
    if state.has_ended and state.seconds:
        count = f", {plural(len(state.attempts), 'attempt')}" if len(state.attempts) > 1 else ""
        yield f"training time{count}", human_seconds(state.seconds)


def headline(state: RunState, *, with_cause: bool = True) -> str:
    """Where a run is, or how it ended, in one sentence; without the cause where that is on the screen already."""
    run = typed_path(state.folder)
    if state.is_orphaned:
        return (
            f"Still training, but without a supervisor. `holdfast resume {run}` stops it and continues from the last "
            "checkpoint."
        )
    match state.state:
        case "finished":
            return _finished(state)
        case "failed":
            return _failed(state, with_cause)
        case "stopped" if state.records.result and state.records.result.has_left:
            return "This machine left the run, which continues when enough machines have joined."
        case "stopped" if state.records.result:
            return sentence(f"stopped {_where(state)}")
        case "stopped" if not state.records.request:
            return f"Not running. {REQUEST} is missing or damaged, so this run cannot be resumed."
        case "stopped":
            return f"Not running. Continue with `holdfast resume {run}`."
        case "waiting":
            return sentence(machines_text(state.waiting)) if state.waiting else "Waiting for machines."
    text, numbers = state_text(state), progress_text(state)
    number = f", attempt {state.attempt.number}" if state.attempt and state.attempt.number > 1 else ""
    return sentence(f"{text}{number}: {numbers}" if numbers else f"{text}{number}")


def _finished(state: RunState) -> str:
    failed = sum(attempt.is_failed for attempt in state.attempts)
    tries = f" after {plural(failed, 'failed attempt')}" if failed else ""
    score = final_score(state.records.metrics.scores)
    steps = f", {state.step:,} steps" if state.step and not score else ""
    text = f"finished in {human_seconds(state.seconds)}{tries}{steps}"
    if score:
        split, name, value = score
        text += f": {metric_value(name, value)} {metric_name(name)} on the {split} split"
    but = cause_text(state.attempt) if state.attempt else ""
    return sentence(f"{text}, but {but}" if but else text)


def _failed(state: RunState, with_cause: bool) -> str:
    """The cause, and why nothing more is tried."""
    attempt = state.attempt
    if attempt is None:
        error = state.records.result.error if state.records.result else None
        return sentence(error.what if error else "failed before the first attempt")
    cause = (
        f": {short_cause_text(attempt.cause) or cause_text(attempt) or 'no cause was recorded'}" if with_cause else ""
    )
    why = reason_text(attempt.decision.reason) if attempt.decision else ""
    return sentence(f"failed after {plural(len(state.attempts), 'attempt')}{cause}") + (
        f" {sentence(why)}" if why else ""
    )


def _where(state: RunState) -> str:
    if state.step:
        return f"at step {state.step:,}" + (f" of {state.steps:,}" if state.steps else "")
    request = state.records.request
    if isinstance(request, TrainRequest) and request.folds and not request.fold:
        return f"before all {request.folds} folds were trained"
    if state.attempt is None:
        return "before the first attempt"
    if state.is_command:
        return f"in attempt {state.attempt.number}"
    phase = f" ({phase_text(state.attempt.phase)})" if state.attempt.phase else ""
    return f"before the first step of attempt {state.attempt.number}{phase}"


# An attempt


def attempt_mark(attempt: AttemptState) -> Mark:
    """The mark of an attempt."""
    return _MARKS.get(attempt.outcome, "x")


def attempt_text(attempt: AttemptState) -> str:
    """An attempt in one line, without its cause: "hung and was terminated at step 40, noticed after 5.8 s"."""
    where = f" at step {attempt.step:,}" if attempt.step else ""
    if not attempt.step and attempt.phase not in ("", "start") and attempt.outcome != "finished":
        where = f" while {phase_text(attempt.phase)}"
    noticed = attempt.noticed_after_seconds
    return f"{ENDED[attempt.outcome]}{where}" + (f", noticed after {human_seconds(noticed)}" if noticed else "")


def attempt_lines(attempt: AttemptState, before: AttemptState | None = None) -> list[Line]:
    """An attempt with its cause, a line each; a cause that the attempt before had too is not said again."""
    tried = f" ({attempt.fallback})" if attempt.fallback else ""
    lines = [Line(f"attempt {attempt.number}{tried} {attempt_text(attempt)}", attempt_mark(attempt))]
    cause = cause_text(attempt)
    if cause and before and cause == cause_text(before):
        return [*lines, Line(f"the same cause as attempt {before.number}")]
    return [*lines, Line(clean(cause, 600) + named_text(attempt.slug))] if cause else lines


def attempt_facts(attempt: AttemptState) -> Iterator[str]:
    """What is known of an attempt besides its end."""
    if attempt.seconds is not None:
        yield f"ran {human_seconds(attempt.seconds)}"
    if isinstance(attempt.resumed, ev.Resumed):
        yield f"resumed from step {attempt.resumed.step:,}"
    if attempt.peak_bytes:
        yield f"peak memory {human_bytes(attempt.peak_bytes)}"


def cause_text(attempt: AttemptState) -> str:
    """Why an attempt failed, or what was wrong with one that finished; empty when nothing was."""
    if attempt.cause:
        return full_cause_text(attempt.cause).rstrip(".")
    if attempt.weights and attempt.weights.is_nan:
        return nan_text(attempt.weights.step, attempt.weights.last_finite_step)
    if attempt.is_failed and attempt.diagnosis:
        return attempt.diagnosis.title
    return ""


def cause_label(attempt: AttemptState) -> str:
    """How sure the cause is: "Cause, proven", "Probable cause"."""
    return _DOUBT.get(attempt.diagnosis.confidence if attempt.diagnosis else "", "Cause")


def proof_lines(attempt: AttemptState) -> list[str]:
    """What proves the cause: lines of the log, and what was observed."""
    return [seen_text(one) for one in attempt.diagnosis.because] if attempt.diagnosis else []


def seen_text(seen: Any) -> str:
    """A line of the log with its number, or an observation."""
    if isinstance(seen, Passage):
        return f"line {seen.line}: {clean(seen.text, 1000)}" if seen.line else clean(seen.text, 1000)
    return observation_text(seen)


def decision_text(decision: Decision) -> str:
    """What followed a failed attempt: "load data in the main process [loader_workers 0]: remedy for: ..."."""
    what = {"again": "the same settings again", "stop": "nothing more was tried"}.get(decision.action, "")
    if decision.fallback:
        what = decision.fallback.title
        what += f" [{changes_text(decision.fallback.change)}]" if decision.fallback.change else ""
    why = reason_text(decision.reason)
    return f"{what}: {why}" if what and why else what or why


def reason_text(reason: Reason | None) -> str:
    """Why an attempt is made the way it is, or why no more is made."""
    if reason is None:
        return ""
    return _REASONS[reason.kind].format(
        title=clean(reason.title, 600).rstrip("."),
        place=f" at {clean(reason.place)}" if reason.place else "",
        step=f"{reason.step:,}",
        times=reason.attempts,
        attempts=plural(reason.attempts, "attempt"),
        seconds=human_seconds(reason.seconds),
    )


_REASONS = {
    "as_requested": "the settings as requested",
    "remembered": "worked here before: {title}",
    "after_stop": "continues after a stop",
    "after_finish": "the run had finished",
    "after_failure": "the run had failed; retrying with the settings that got furthest",
    "supervisor_lost": "its supervisor had ended",
    "called": "called by {title}",
    "killed_externally": "the process was killed externally",
    "waited_outside": "it waited for something outside the training, which no setting changes",
    "made_worse": "'{title}' made it worse, so it is reverted",
    "rank_chance": "one of several processes failed, perhaps by chance",
    "hang_chance": "it hung after {seconds}, perhaps by chance",
    "own_failure_chance": "one retry, in case it happened by chance; no setting changes the program's own code",
    "progress": "it made progress, up to step {step}",
    "error_after_progress": "the error has no known cause; retrying from step {step} or earlier",
    "remedy": "remedy for: {title}",
    "next_fallback": "the next fallback",
    "remedy_again": "retrying the remedy for: {title}",
    "changes_learning": "remedy for: {title}; it changes what the model learns, which you allowed",
    "no_progress_limit": "{attempts} without progress, the limit set by --max-attempts",
    "attempt_limit": "no further attempts are allowed after {attempts}",
    "final_exit_code": "other settings would not help",
    "killed_at_start": "the process was killed {times} times right after it started",
    "deliberate_exit": "the program exited on purpose; retrying would not help",
    "unexplained_exit": "it ended with an error code and printed no error that Holdfast knows, so it was not retried",
    "same_exit_code": "it exited with the same code again, without an error",
    "program_missing": "other settings would not help",
    "certain_bug": "retrying cannot fix this error",
    "same_error": "the same error came back{place}; no known fix applies",
    "same_failure": "the same failure came back{place}; no known fix applies",
    "unknown_error_again": "a second error without a known cause",
    "unknown_error": "an error without a known cause, and no setting to change",
    "nothing_left": "every fallback was tried",
    "no_fallback": "no fallback can help",
}


def named_text(slug: str | None) -> str:
    """The name of a known hazard after a sentence about it."""
    return f" [{slug}]" if slug and slug != "unknown" else ""


# The end


def closing_lines(state: RunState, *, with_cause: bool = True) -> list[Line]:
    """The last lines on the screen: how it ended, how good the model is, what to do next."""
    run, result = typed_path(state.folder), state.records.result
    slug = result.slug if result else ""
    more = [Line(f"holdfast explain {slug}", name="more")] if slug and slug != "unknown" else []
    if state.state == "finished":
        check = forecast_check_text(result.forecast) if result and result.forecast else ""
        forecast = [Line(check, "ok", "forecast")] if check else []
        return [*_scores(state), *forecast, Line(headline(state), "ok"), *more, *_use(state)]
    lines = [Line(headline(state, with_cause=with_cause), "x" if state.state == "failed" else "--")]
    if state.state == "failed":
        lines += [Line(clean(remedy), name="try") for remedy in (result.remedies[:3] if result else ())]
        return [*lines, *more, Line(run, name="files")]
    return [*lines, Line(f"holdfast resume {run}", name="next")]


def _scores(state: RunState) -> Iterator[Line]:
    if state.is_command:
        return
    found = state.records.metrics.splits
    for split, metrics in found.items():
        text = scores_text(metrics.scores, metrics.intervals, metrics.spread)
        if metrics.folds:
            text += f" (mean and standard deviation of {metrics.folds} folds)"
        yield Line(text, "ok", split)
        if gives_no_label(metrics.scores):
            yield Line(f"{NO_LABEL}; try more epochs or a higher learning rate", "!")
    if not found:
        rows = state.records.dataset.splits.get("train", 0) if state.records.dataset else 0
        share = ", or --validation-share 0.2" if rows >= FEWEST_ROWS else ""
        yield Line(f"{not_measured_text(state)}. To measure it: --validation FILE{share}", "!")


def gives_no_label(metrics: Mapping[str, object]) -> bool:
    """True where texts may have any number of labels and none got one."""
    return metrics.get("micro_f1") == 0 and "accuracy" not in metrics


def not_measured_text(state: RunState) -> str:
    """That a finished model was measured on nothing, and why."""
    train = state.records.dataset.splits.get("train") if state.records.dataset else None
    rows = f" (all {train:,} rows are for training)" if train else ""
    return f"the model was not measured: the data has no validation or test rows{rows}"


def _use(state: RunState) -> Iterator[Line]:
    run = typed_path(state.folder)
    if state.is_command:
        yield Line(run, name="files")
        return
    if any(one.folds for one in state.records.metrics.splits.values()):
        yield Line(f"{run}/fold-1 and so on", name="files")
        return
    yield Line(f"{run}/model", name="model")
    yield Line(f'holdfast predict {run} "..."', name="next")
    if (state.folder / REPORT).is_file():
        yield Line(f"{run}/{REPORT}", name="report")


def forecast_check_text(check: ForecastCheck) -> str:
    """The forecast next to what happened: "took 41 s, 2% longer than forecast (40 s)"; empty without a forecast."""
    parts = []
    for one, what, write, more, less in (
        (check.seconds, "took {}", human_seconds, "longer", "shorter"),
        (check.peak_bytes, "{} of memory", human_bytes, "more", "less"),
        (check.card_peak_bytes, "{} of GPU memory", human_bytes, "more", "less"),
    ):
        if one.forecast and one.actual:
            off = _off_by(one.actual / one.forecast - 1, more, less)
            parts.append(f"{what.format(write(one.actual))}, {off} ({write(one.forecast)})")
    return "; ".join(parts)


def forecast_reasons(clock: ComparedTime) -> list[str]:
    """Why a time forecast was off: what it could not know, each with its share of the error."""
    reasons = []
    lost = clock.lost_seconds
    if lost:
        reasons.append(f"{human_seconds(lost)} went into interrupted attempts")
    before, after = clock.cores.forecast, clock.cores.actual
    if before and after and clock.actual and clock.forecast and abs(after / before - 1) > _DISTURBED:
        with_as_much = (clock.actual - lost) * after / before
        why = (
            "other programs kept the processor busy" if after < before else "other programs used less of the processor"
        )
        reasons.append(
            f"{why}: the run got {cores_text(after)}, and {cores_text(before)} when the forecast was made. With that "
            f"many cores it would have taken about {human_seconds(with_as_much)}, "
            f"{_off_by(with_as_much / clock.forecast - 1, 'longer', 'shorter')}"
        )
    return reasons


def _off_by(error: float, more: str, less: str) -> str:
    """How far off a forecast was: "12% longer than forecast"."""
    share = f"{abs(error):.0%}"
    return "as forecast" if share == "0%" else f"{share} {more if error > 0 else less} than forecast"
