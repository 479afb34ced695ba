"""Every sentence about a job that is not about its run: the queue, its machine, a plan that waits for its start.

What the run itself does is worded by `runs/wording.py`, here as everywhere.
"""

from typing import Literal

from holdfast.core.text import human_seconds, plural
from holdfast.runs.observation_wording import phase_text
from holdfast.runs.state import RunState
from holdfast.runs.wording import attempt_text, cause_text, headline, sentence, state_text
from holdfast.service.jobs.leases import place_in_queue
from holdfast.service.jobs.models import Job, JobGoal, JobState

Look = Literal["", "good", "warn", "bad"]

_BADGES = {JobState.QUEUED: "waiting for a machine", JobState.PLANNED: "ready to start"}


def job_badge(job: Job, state: RunState | None = None) -> str:
    """The state of a job in a few words; what runs now comes from the run's state, or from the row without one."""
    if job.state == JobState.RUNNING:
        if job.stop_asked:
            return "stopping"
        if job.silent_since:
            return "not responding"
        return (state_text(state) if state else phase_text(job.phase)) or "starting"
    if job.state == JobState.QUEUED and job.goal == JobGoal.PLAN:
        return "waiting to be planned"
    return _BADGES.get(JobState(job.state), job.state)


def job_headline(job: Job, state: RunState | None) -> tuple[str, Look]:
    """Where a job is, in one sentence without numbers that change: screen readers read it aloud at each change."""
    if job.error:
        return "This run was refused.", "bad"  # the error is shown below
    match JobState(job.state):
        case JobState.QUEUED:
            return _waiting(job), ""
        case JobState.RUNNING:
            return _running(job, state)
        case JobState.PLANNED:
            return "The plan is ready. Start the training, or change the settings first.", "good"
        case JobState.STOPPED:
            where = f" at step {job.step:,} of {job.steps:,}" if job.steps else ""
            why = ", because it reached the time limit of this service" if job.has_reached_time_limit else ""
            return f"Stopped{where}{why}. Resume to continue from the last checkpoint.", "warn"
        case JobState.FINISHED:
            return _ended(job, state) or "Finished, but the result is missing.", "good"
    return _ended(job, state) or "Failed without leaving a reason.", "bad"


def end_sentence(state: RunState) -> str:
    """How a run ended, for its row; nothing of a run that was stopped, of which the row knows everything."""
    return headline(state) if state.state in ("finished", "failed") else ""


def trouble_text(state: RunState) -> str:
    """Why the newest failed attempt failed, for a notice."""
    failed = [one for one in state.attempts if one.is_failed]
    if not failed:
        return ""
    cause = cause_text(failed[-1])
    return sentence(f"attempt {failed[-1].number} {attempt_text(failed[-1])}") + (
        f" {sentence(cause)}" if cause else ""
    )


def _waiting(job: Job) -> str:
    need = f" with {job.device}" if job.device else ""
    goal = "plan the run" if job.goal == JobGoal.PLAN else "train"
    found = f"Waiting for a free machine{need} to {goal}"
    place = place_in_queue(job)
    if place is None:
        return f"{found}."
    found += f"; {plural(place.ahead, 'run')} {'is' if place.ahead == 1 else 'are'} ahead" if place.ahead else "; next"
    if place.starts_in_seconds is not None:
        found += f", in about {human_seconds(place.starts_in_seconds)}"
    return f"{found}."


def _ended(job: Job, state: RunState | None) -> str:
    if state and state.state == job.state:
        return headline(state)
    return sentence(job.sentence)


def _running(job: Job, state: RunState | None) -> tuple[str, Look]:
    where = f" on {job.worker}" if job.worker else ""
    if job.stop_asked:
        return f"Stopping{where}: saving first.", "warn"
    if since := job.silent_since:
        return (
            f"{job.worker or 'The machine'} has not reported since {since:%H:%M:%S} UTC. If it does not come back, the "
            "run continues from its last checkpoint.",
            "warn",
        )
    attempt = f", attempt {state.attempt.number}" if state and state.attempt and state.attempt.number > 1 else ""
    return sentence(f"{job_badge(job, state)}{where}{attempt}"), ""
