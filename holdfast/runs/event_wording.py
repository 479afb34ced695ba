"""What the log of a run shows of each event: on a terminal, in a page's history. Most events show nothing."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core import events as ev
from holdfast.core.plan import Choice
from holdfast.core.records import LongestExamples, RecalledProof, ResumeCheck
from holdfast.core.text import human_bytes, human_seconds, plural, processes_words
from holdfast.runs.cause_wording import full_cause_text, short_cause_text
from holdfast.runs.observation_wording import activity_text, blindness_text, nan_text, phase_text, process_text
from holdfast.runs.proof_wording import proof_mark, proof_text
from holdfast.runs.wording import (
    ENDED,
    Line,
    changes_text,
    clean,
    evaluation_text,
    machines_text,
    named_text,
    reason_text,
)

_COLUMNS = ("text column", "label column")
_SHOWN_CHECKS = (RecalledProof, LongestExamples, ResumeCheck)  # without -v; the others only when they fail


def event_lines(event: ev.Event) -> list[Line]:
    """What the log of a run shows of an event."""
    match event:
        case ev.FoldStarted():
            return [Line(f"fold {event.fold} of {event.folds}", "..")]
        case ev.Surveyed():
            return _surveyed(event)
        case ev.ModelFound():
            count = event.parameters
            size = f"{count / 1e6:,.1f} million" if count >= 1e6 else f"{count:,}"
            weights = f", {size} weights" if count else ""
            return [Line(f"{event.name}{weights}, from {event.source}", "ok", "model")]
        case ev.MachineProbed():
            cores = plural(event.cpu_count, "core") if event.cpu_count else ""
            memory = f"{human_bytes(event.memory_bytes)} of memory" if event.memory_bytes else ""
            text = ", ".join(filter(None, (cores, memory, ", ".join(event.gpus) or "no GPU")))
            return [Line(text, "ok", "machine", is_detail=True)]
        case ev.FindingReported():
            text = f"{event.title}: {event.seen} [{event.slug}]"
            return [Line(text, "!", "machine", is_detail=event.severity != "blocker")]
        case ev.DataPrepared():
            return _prepared(event)
        case ev.Planned():
            return _planned(event)
        case ev.ProofReported():
            mark = proof_mark(event.result)
            is_detail = mark == "ok" and not isinstance(event.result, _SHOWN_CHECKS)
            return [Line(clean(proof_text(event.result), 600), mark, "proof", is_detail=is_detail)]
        case ev.ProofPartFailed():
            return [Line(clean(f"{event.part}: {full_cause_text(event.cause) or event.outcome}"), "..", "proof")]
        case ev.ForecastMade():
            return [Line(forecast_text(event), "ok", "forecast")]
        case ev.ModelNoted():
            return [Line(clean(_model_noted(event)), "..", "model")]
        case ev.ReportFailed():
            return [Line(f"the report could not be written: {event.error}", "!", "report")]
    return _attempt_event(event) or _script_event(event)


def _attempt_event(event: ev.Event) -> list[Line]:
    """The supervisor's events about an attempt."""
    match event:
        case ev.AttemptStarted():
            return _attempt_started(event)
        case ev.SettingsRemembered():
            what = changes_text(event.changes)
            forget = "`holdfast memory --forget` undoes this"
            return [
                Line(f"starting with {what}, because this run finished with it on this machine before ({forget})", "..")
            ]
        case ev.PhaseChanged():
            step = f", step {event.step:,}" if event.step else ""
            return [Line(f"phase: {phase_text(event.phase) or 'starting'}{step}", "..", is_detail=True)]
        case ev.Quiet():
            return [Line(quiet_text(event), "..")]
        case ev.FailureNoticed():
            what = "no further progress is possible" if event.exit_code is None else "the process ended too early"
            return [Line(f"{what}; collecting evidence", "..", is_detail=True)]
        case ev.AttemptEnded():
            return _attempt_ended(event)
        case ev.CauseCorrected():
            cause = clean(short_cause_text(event.cause))
            return [Line(f"attempt {event.number}: its crash report arrived; {cause}{named_text(event.slug)}", "x")]
        case ev.WatchLimited():
            is_detail = event.blindness.system == "macos"
            return [Line(clean(blindness_text(event.blindness)), "..", is_detail=is_detail)]
        case ev.Decided(action="stop"):
            return []  # the result says so
        case ev.DiskFull():
            return [Line("disk full: nothing can be saved; free some space", "!")]
        case ev.ProcessesEnded():
            why = (
                "the command has finished; stopped the processes it left running"
                if event.has_finished
                else "stopped processes that an earlier supervisor left running"
            )
            return [Line(f"{why}: {', '.join(map(process_text, event.processes))}", "..")]
        case ev.ProcessesLeft():
            return [Line(f"processes that could not be stopped: {', '.join(map(process_text, event.processes))}", "!")]
        case ev.StopStarted():
            limit = human_seconds(event.seconds)
            return [Line(f"stopping: saving first, for at most {limit}; press Ctrl-C again to stop immediately", "..")]
        case ev.MachinesAwaited():
            missing = f"waiting for {event.wanted - len(event.present)} more"
            return [Line(f"{machines_text(event)}; {missing}, giving up in {human_seconds(event.seconds_left)}", "..")]
        case ev.LeaderAwaited():
            return [Line(machines_text(event), "..")]
        case ev.LeaderLost():
            silent = f" for {human_seconds(event.silent_seconds)}" if event.silent_seconds else ""
            return [Line(f"{event.leader} has not reported{silent}; this machine is trying to take over", "..")]
        case ev.StorageTrouble():
            return [Line(f"the shared folder cannot be written: {clean(event.error)}", "!")]
        case ev.StorageRestored():
            return [Line("the shared folder can be written again", "ok")]
    return []


def _script_event(event: ev.Event) -> list[Line]:
    """The training process's events."""
    match event:
        case ev.Resumed():
            name = f"{Path(event.checkpoint).name}, " if event.checkpoint else ""
            return [Line(f"resumed from {name}step {event.step:,}", "..")]
        case ev.BackendChanged():
            text = f"{event.before} computed the checkpoint; {event.now} continues, no longer bit for bit"
            return [Line(text, "!")]
        case ev.StartedOver():
            return [Line("no checkpoint of this run was found; starting from the beginning", "..")]
        case ev.ResumeForeseen():
            return [Line(_resume_foreseen(event), "..")]
        case ev.ResumeArgsChosen(checkpoint=""):
            words = clean(shlex.join(event.arguments))
            return [
                Line(
                    f"the script has saved no checkpoint in this run; starting from the beginning without {words}", ".."
                )
            ]
        case ev.ResumeArgsChosen():
            words, name = clean(shlex.join(event.arguments)), clean(Path(event.checkpoint).name)
            return [Line(f"adding {words}: the script saved {name} in this run", "..")]
        case ev.Evaluated():
            scores = evaluation_text(event.metrics)  # none without a validation split
            return [Line(f"step {event.step:,}: validation {scores}", "ok", "training")] if scores else []
        case ev.CheckpointRejected():
            why = f": {clean(event.reason)}" if event.reason else ""
            return [
                Line(f"checkpoint {Path(event.path).name or '?'} is damaged or incomplete and was skipped{why}", "!")
            ]
        case ev.CheckpointSkipped():
            return [Line(f"checkpoint {Path(event.path).name} was not saved: {clean(event.reason)}", "!")]
        case ev.CheckpointFailed(is_full=False):
            return [Line(f"checkpoint of step {event.step:,} could not be saved: {clean(event.reason)}", "!")]
        case ev.BestCheckpointMissing():
            return [Line(f"the best checkpoint (step {event.step:,}) is missing; keeping the last weights", "!")]
        case ev.WeightsChecked(is_nan=True):
            return [Line(f"{nan_text(event.step, event.last_finite_step)}; the script continues [nan-loss]", "!")]
        case ev.WeightsChecked():
            return [Line(f"the weights are finite again at step {event.step:,}", "..")]
        case ev.ChangeApplied():
            return [Line(f"applied {event.change} {event.value} ({clean(event.how)})", "..", is_detail=True)]
        case ev.ChangeRefused():
            why = f": {clean(event.because)}" if event.because else ""
            return [Line(f"{event.change} {event.value} has no effect in this script{why}", "..", is_detail=True)]
        case ev.HookFailed():
            text = f"Holdfast's hook in {event.where} failed, so the script runs without it: {clean(event.error)}"
            return [Line(text, "!", is_detail=True)]
        case ev.NotObserved():
            what = ".".join(filter(None, (event.module, event.name)))
            why = f" ({clean(event.because)})" if event.because else ""
            return [Line(f"{what} cannot be observed{why}", "..", is_detail=True)]
        case ev.Orphaned():
            return [Line(f"the supervisor (pid {event.supervisor}) is gone, so the process ended itself", "!")]
        case ev.EpochStarted(made=made) if made:
            counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in made.items())
            return [Line(f"epoch {event.epoch + 1} starts with {counts}", "..", is_detail=True)]
    return []


_RESUMES_FROM = {
    "trainer": "the newest whole checkpoint of its Trainer",
    "lightning": "the newest whole checkpoint of Lightning",
    "steps": "the newest checkpoint of holdfast.steps",
}


def _resume_foreseen(event: ev.ResumeForeseen) -> str:
    match event.how:
        case "resume_args":
            return f"after a failure, {clean(event.option)} is added once the script has saved a checkpoint"
        case "own_option":
            return (
                "the script seems to have its own resume option; to continue after a failure,"
                f" add --resume-args={clean(shlex.quote(event.option))}"
            )
        case "none":
            return "after a failure, the script starts from the beginning; holdfast.steps would let it continue"
    return f"after a failure, the script continues from {_RESUMES_FROM[event.how]}"


def quiet_text(event: ev.Quiet) -> str:
    """No progress, and what the process is doing meanwhile."""
    step = f" (step {event.step:,})" if event.step else ""
    activity = f": {clean(activity_text(event.activity))}" if event.activity else ""
    phase = f" while {phase_text(event.phase)}" if event.phase not in ("", "start") else ""
    return f"no progress for {human_seconds(event.seconds)}{phase}{step}{activity}"


def full_disk_text(saved_step: int | None) -> str:
    """What a full disk means for a run."""
    last = f"last checkpoint: step {saved_step:,}" if saved_step else "nothing was saved yet"
    return f"disk full; {last}. Free some space to continue saving"


def forecast_text(event: ev.ForecastMade) -> str:
    """How long it will take, how much memory it will need, and what that is based on."""
    text = f"{human_seconds(event.seconds)} left"
    text += f", up to {human_bytes(event.peak_bytes)} of memory" if event.peak_bytes else ""
    text += f" and {human_bytes(event.card_peak_bytes)} of GPU memory" if event.card_peak_bytes else ""
    if event.measured_steps and event.step_seconds:
        text += f" (measured over {event.measured_steps} steps of {_short_time(event.step_seconds)})"
    return text


def _short_time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else human_seconds(seconds)


def _surveyed(event: ev.Surveyed) -> list[Line]:
    splits = ", ".join(f"{name} {rows:,}" for name, rows in event.splits.items())
    labels = f", {event.labels:,} labels" if event.labels else ""
    # A wrong guess of the columns trains the wrong model, so they are always shown.
    columns = [str(choice.value) for name, choice in event.choices.items() if name in _COLUMNS]
    used = f", from {' and '.join(map(repr, columns))}" if columns else ""
    lines = [Line(f"{event.task}, {event.form}: {event.rows:,} rows ({splits}){labels}{used}", "ok", "data")]
    lines += [Line(_choice(name, choice), is_detail=True) for name, choice in event.choices.items()]
    return [*lines, *(Line(clean(warning.line, 600), "!", "data") for warning in event.warnings)]


def _prepared(event: ev.DataPrepared) -> list[Line]:
    tokens = sum(size.tokens for size in event.splits.values())
    how = "already prepared" if event.is_reused else f"prepared in {human_seconds(event.seconds)}"
    lines = [Line(f"{tokens:,} tokens, {how}" if tokens else how, "ok", "data", is_detail=True)]
    if event.bad_row_count:
        rows = plural(event.bad_row_count, "row")
        lines.append(Line(f"{rows} left out: no answer to learn within the maximum length", "!", "data"))
    return lines


def _planned(event: ev.Planned) -> list[Line]:
    lines = [Line(plan_text(event.choices), "ok", "plan")]
    return lines + [Line(_choice(name, choice), is_detail=True) for name, choice in event.choices.items()]


def plan_text(choices: Mapping[str, Choice[Any]]) -> str:
    """The plan in one line: "3 epochs, batch 16, lr 5e-05, cpu fp32, 2 threads"."""
    value = {name: choice.value for name, choice in choices.items()}
    steps = value.get("max_steps")
    parts = [plural(int(steps), "step") if steps else plural(int(value["epochs"]), "epoch")]
    parts += [f"batch {value['batch_size']}", f"lr {value['lr']:g}"]
    parts += ["LoRA"] if value.get("lora") else []
    parts += [f"{value['device']} {value['precision']}"]
    if count := processes_words(int(value.get("processes") or 1)):
        parts.append(count)
    if value["device"] == "cpu":
        parts.append(plural(int(value["threads"] or 1), "thread"))
    if nodes := value.get("nodes"):
        parts.append(f"{nodes} machines")
    return ", ".join(parts)


def _choice(name: str, choice: Choice[Any]) -> str:
    return f"{name} {choice.value}" + (f" ({choice.because})" if choice.because else "")


def _model_noted(event: ev.ModelNoted) -> str:
    match event.kind:
        case "from_cache":
            return f"the hub cannot be reached ({event.reason}); using {event.name} from its cache"
        case "from_package":
            return (
                f"the hub cannot be reached; downloading {event.name} from the package {event.package} "
                f"({human_bytes(event.size_bytes)}, without its dependencies)"
            )
    return f"converting {event.name} into a plain folder, because {event.reason}"


def _attempt_started(event: ev.AttemptStarted) -> list[Line]:
    cost = f"; cost: {event.cost}" if event.cost else ""
    why = reason_text(event.reason)
    if event.fallback:
        return [Line(f"attempt {event.number}: {event.fallback} ({why}{cost})", "..")]
    if event.number > 1:
        return [Line(f"attempt {event.number}, same settings: {why}", "..")]
    return [Line(f"attempt {event.number}", "..", is_detail=True)]


def _attempt_ended(event: ev.AttemptEnded) -> list[Line]:
    noticed = event.noticed_after_seconds
    seen = f", noticed after {human_seconds(noticed)}" if noticed else ""
    step = f" at step {event.step:,}" if event.step else ""
    cause = clean(short_cause_text(event.cause)) or ENDED[event.outcome]
    lines = [Line(f"attempt {event.number} failed{step}{seen}: {cause}{named_text(event.slug)}", "x")]
    return [*lines, Line(clean(full_cause_text(event.cause), 600), is_detail=True)] if event.cause else lines
