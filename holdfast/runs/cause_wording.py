"""Why an attempt failed, for people.

    cause_sentence(cause)       "hung at step 20 of 100: a deadlock between threads (...)": with its proof
    short_cause_text(cause)     "ValueError: bad batch": what a screen shows while the run continues

Values come in, text goes out, as in `runs/wording.py`; no code parses the text.
"""

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.core import observations as ob
from holdfast.core.evidence import Cause, Diagnosis, RuledOut
from holdfast.core.plan import EXAMPLE_COMMAND, EXAMPLE_SCRIPT, Remedy
from holdfast.core.records import Interruption, Outcome
from holdfast.core.text import human_bytes, human_seconds, plural
from holdfast.runs.observation_wording import (
    exit_text,
    given_up_text,
    nan_text,
    observation_text,
    phase_text,
    rank_verdict_text,
    seen_text,
    short_text,
    verdict_text,
)

_MOST_RANKS = 3
_RULED_OUT: dict[RuledOut, str] = {
    "memory_kill": "a memory kill (none was counted)",
    "crash_of_another_process": "a crash of another process of the run",
    "full_disk": "a full disk",
}


def outcome_text(outcome: Outcome) -> str:
    """Why an attempt ended as it did; empty for one that simply finished."""
    return full_cause_text(outcome.cause or outcome.interruption)


def full_cause_text(cause: Cause | Interruption | None) -> str:
    """Why an attempt ended, with the proof; empty where nothing is known."""
    if cause is None:
        return ""
    return interruption_text(cause) if isinstance(cause, Interruption) else cause_sentence(cause)


def short_cause_text(cause: Cause | Interruption | None) -> str:
    """The same without its proof: the error of the program, or the hazard and where it struck."""
    if not isinstance(cause, Cause):
        return full_cause_text(cause)
    node = f"on {cause.node}: " if cause.node else ""
    if cause.slug == "unknown":
        return node + (short_text(cause.error) or f"{exit_text(cause.exit)}{_where(cause)}, cause unknown")
    doubt = "" if cause.confidence == "proven" else "probably "
    own = cause.proof if isinstance(cause.proof, ob.OwnCode) else cause.place
    return f"{node}{doubt}{cause.title}" + (f" ({own.place})" if own else "")


def interruption_text(why: Interruption) -> str:
    """What ended an attempt that was not at fault itself."""
    nodes = ", ".join(why.nodes)
    on_node = f"on {nodes}: " if nodes else ""
    match why.kind:
        case "supervisor_killed":
            phase = f" while {phase_text(why.phase)}" if why.phase not in ("", "start", "step") else ""
            return f"its supervisor was killed{phase}" + (f" at step {why.step:,}" if why.step else "")
        case "supervisor_restarted":
            return f"{on_node}its supervisor was killed and restarted"
        case "not_heard_from":
            return (
                f"{on_node}its supervisor has not reported for {human_seconds(why.seconds)}: it was killed, or the "
                "machine is off or cannot reach the run folder"
            )
        case "asked_to_leave":
            return f"{nodes} was asked to leave; the run continues when enough machines have joined"
        case "ended_early":
            return f"ended early on {nodes}"
        case "unreachable":
            return (
                f"the other machines could not reach {nodes} at {why.host}, port {why.port} ({why.message}); if they "
                f"reach it at another address, set HOLDFAST_NODE_ADDRESS=ADDRESS on {nodes}"
            )
        case "not_started":
            return f"{on_node}cannot be started: {why.message}"


def cause_sentence(cause: Cause) -> str:
    """Why an attempt failed, in one sentence with its proof; or that it is unknown, and what was ruled out."""
    node = f"on {cause.node}: " if cause.node else ""
    return node + _cause(cause)


def _cause(cause: Cause) -> str:
    match cause.proof:
        case ob.ProgramExit() if cause.slug == "exit-crash":
            return _exit_crash(cause, cause.proof)
        case ob.NonFiniteNumbers() if not cause.exit:
            return nan_text(cause.proof.step, cause.proof.last_finite_step)
    how = exit_text(cause.exit) + _where(cause)
    if cause.slug == "unknown":
        return _unknown(cause, how)
    if cause.memory_kill:
        return _memory_kill(cause, cause.memory_kill)
    doubt = "" if cause.confidence == "proven" else "probably "
    proof = "; ".join(filter(None, (_proof(cause), _place(cause))))
    return f"{how}: {doubt}{cause.title}" + (f" ({proof})" if proof else "")


def ruled_out_text(ruled_out: RuledOut, verdict: ob.TreeVerdict | None = None) -> str:
    """One possible cause that was checked and ruled out."""
    if ruled_out == "deadlock":
        return f"a deadlock ({verdict_text(verdict)})" if verdict else "a deadlock"
    return _RULED_OUT[ruled_out]


def _where(cause: Cause) -> str:
    of = f" of {cause.steps}" if cause.steps else ""
    phase = f" while {phase_text(cause.phase)}" if cause.phase not in ("", "start", "step") else ""
    return phase + (f" at step {cause.step}{of}" if cause.step else "")


def _exit_crash(cause: Cause, last: ob.ProgramExit) -> str:
    handlers = ", while its exit handlers ran" if last.crashed_after == "exit_handler" else ""
    signal = cause.exit.signal if cause.exit else ""
    return f"its process was ended by signal {signal} after the program's last line{handlers}"


def _unknown(cause: Cause, how: str) -> str:
    """What is known although the cause is not: the error, or why the run was given up, and what was ruled out."""
    if cause.exit and cause.exit.code == 0:
        return "ended with code 0, and nothing in its output is a known failure"
    told = f"; the last error was {short_text(cause.error)!r}" if cause.error else ""
    told = f" ({short_text(_given_up(cause))})" if cause.given_up else told
    told += f"; {short_text(observation_text(cause.first_exit))}" if cause.first_exit else ""
    ruled_out = ", ".join(ruled_out_text(one, cause.verdict) for one in cause.ruled_out)
    return f"{how}: the cause is unknown{told}" + (f"; ruled out: {ruled_out}" if ruled_out else "")


def _memory_kill(cause: Cause, kill: ob.OomKill) -> str:
    """The kernel's kill, with the numbers that prove it."""
    limit = f"cgroup limit {human_bytes(kill.limit_bytes)}" if kill.limit_bytes is not None else ""
    counted = f"{plural(kill.kills, 'OOM kill')} counted" + ("" if kill.cgroup else " in the whole system")
    held = ""
    if cause.victim and cause.victim.resident_bytes:  # as reported by the kernel, where its log is readable
        held = f"resident {human_bytes(cause.victim.resident_bytes)} of pid {cause.victim.pid} ({cause.victim.name})"
    elif cause.resident_bytes:
        held = f"resident {human_bytes(cause.resident_bytes)}"
    facts = (limit, counted, f"{held}{_where(cause)}".strip())
    return "killed by the kernel for memory: " + ", ".join(filter(None, facts))


def _proof(cause: Cause) -> str:
    match cause.proof:
        case None:
            return ""
        case ob.GivenUp():
            return short_text(_given_up(cause))
        case ob.TreeVerdict():
            return short_text(verdict_text(cause.proof))
    return short_text(seen_text(cause.proof, node=cause.node))


def _given_up(cause: Cause) -> str:
    """What the tree does, why that is a hang, and where each rank is."""
    parts = [verdict_text(cause.verdict)] if cause.verdict and not (cause.given_up and cause.given_up.is_busy) else []
    if cause.given_up and cause.given_up.reason != "verdict":
        parts.append(given_up_text(cause.given_up))
    if cause.verdict and len(cause.verdict.ranks) > 1 and not cause.ranks:
        parts += _rank_verdicts(cause.verdict.ranks, cause.node)
    return "; ".join(parts)


def _rank_verdicts(ranks: tuple[ob.RankVerdict, ...], node: str) -> Iterator[str]:
    """What each rank does; the first one holds up the others."""
    for number, one in enumerate(ranks):
        rank = f"rank {one.rank}{f' on {node}' if node else ''} (process {one.pid})"
        who = f"process {one.pid}" if one.rank is None else rank
        yield f"{who}: {rank_verdict_text(one)}" + ("" if number else ", and holds up the others")


def _place(cause: Cause) -> str:
    """Where the program hung, or native code crashed, as far as the stack shows it."""
    if cause.ranks:
        more = f"; and {len(cause.ranks) - _MOST_RANKS} more" if len(cause.ranks) > _MOST_RANKS else ""
        return "; ".join(seen_text(one, node=cause.node) for one in cause.ranks[:_MOST_RANKS]) + more
    if cause.place:
        return observation_text(cause.place)
    if not cause.crashed_in:
        return ""
    module = "/".join(Path(cause.crashed_in.module).parts[-3:]) if cause.crashed_in.module else ""
    return f"in {cause.crashed_in.function}" + (f", {module}" if module else "")


# Remedies


def with_own_command(diagnosis: Diagnosis, command: Sequence[str]) -> Diagnosis:
    """The same diagnosis with remedies that name the user's own command instead of the example.

    Nobody types the command of our own engine, so there the example stays.
    """
    if not command or "holdfast.engine" in command:
        return diagnosis
    remedies = (replace(remedy, command=_own_command(remedy, command)) for remedy in diagnosis.remedies)
    return replace(diagnosis, remedies=tuple(remedies))


def _own_command(remedy: Remedy, command: Sequence[str]) -> str:
    advice, script = remedy.command, _script(command)
    if remedy.needs_script and not script:
        return ""  # a missing file cannot be searched; the remedy's title is advice enough
    has_quotes = "'" in advice  # text with quotes must not go inside quotes
    whole, script = (
        own if own and not (has_quotes and "'" in own) else example
        for own, example in ((shlex.join(command), EXAMPLE_COMMAND), (script, EXAMPLE_SCRIPT))
    )
    return whole.join(part.replace(EXAMPLE_SCRIPT, script) for part in advice.split(EXAMPLE_COMMAND))


def _script(command: Sequence[str]) -> str:
    """The first word that names a Python file: not a module, the value of an option, or a line for a shell."""
    words = [
        word
        for before, word in itertools.pairwise(("", *command))
        if before != "-m" and not (before.startswith("--") and "=" not in before)
    ]
    return next((shlex.quote(word) for word in words if word.endswith(".py") and " " not in word), "")
